# Unit tests of the release build. Sourced by tests/run.sh: `suite NAME COMMAND...` runs and counts one, `beside` several at a time.
suite -t 1200 "build unit tests" bash -c 'make -s -j"$(nproc)" unit-programs && printf "ok 1 - built\n1..1\n"'
unit_programs build
