# Include order, formatting, and the like. It takes half a minute of one core, and runs beside the ops so that it does not end last.
beside "lint" tests/lint.sh
# A new room needs a row in tools/mutate, so that tests/long/10_mutate.sh puts faults into it, too.
if command -v python3 >/dev/null; then
    beside "rooms of the mutation run" bash -c '
        why=$(tools/mutate --rooms 2>&1 >/dev/null) && echo "ok 1 - each room of src/ has its list of tests in tools/mutate, and each listed fault its line" || echo "not ok 1 - tools/mutate: $why"
        echo 1..1'
else
    skipped "rooms of the mutation run" "no python3"
fi
