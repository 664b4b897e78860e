# Put faults into every room of src/, one at a time; the tests must notice nine in ten (tools/mutate). The seed changes with each run and is printed, so that
# MUTATE_SEED can repeat a run. MUTATE_COUNT is the number of faults in a room.
if command -v gcov >/dev/null; then
    for room in $(tools/mutate --rooms); do
        suite -t 36000 "mutations: $room" tools/mutate --room "$room" --count "${MUTATE_COUNT:-100}" --seed "${MUTATE_SEED:-$(date +%s)}" --least 90 --tap
    done
else
    skipped "mutations" "no gcov"
fi
