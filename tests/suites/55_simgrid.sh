# The planner's model of collectives against SimGrid. Sourced by tests/run.sh; skipped if
# libsimgrid-dev is missing.
if echo '#include <simgrid/engine.h>' | ${CC:-cc} -E -x c - >/dev/null 2>&1; then
    beside "planner against SimGrid" bash -c '
        make -s lib && mkdir -p build/tests/simgrid &&
        ${CC:-cc} -D_GNU_SOURCE -std=c17 -O2 -Iinclude -o build/tests/simgrid/collective tests/simgrid/collective.c build/liblateen.a \
            -lsimgrid -fopenmp -ljansson -lyaml -lm && build/tests/simgrid/collective'
else
    skipped "planner against SimGrid" "libsimgrid-dev is not installed"
fi
