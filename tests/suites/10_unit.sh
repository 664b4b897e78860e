# Unit tests of the release build. Sourced by tests/run.sh: `suite NAME COMMAND...` runs and counts one, `beside` several at a time.
suite "build unit tests" bash -c 'make -s -j"$(nproc)" unit-programs && echo "ok 1 - built"'
unit_programs build
