# All of the unit tests of which `make test` runs only a part.
suite -t 1200 "build the played worlds" bash -c 'make -s -j"$(nproc)" build/tests/unit/serve/test_{draft,scheduler} && printf "ok 1 - built\n1..1\n"'
beside "drafts in all worlds" env LATEEN_TEST_ALL=1 build/tests/unit/serve/test_draft
beside "scheduler and pages in all steps" env LATEEN_TEST_ALL=1 build/tests/unit/serve/test_scheduler
