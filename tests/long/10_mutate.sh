# Put faults into every room of src/, one at a time; the tests must notice nine in ten (tools/mutate). The seed changes with each run and is printed, so that
# MUTATE_SEED can repeat a run. MUTATE_COUNT is the number of faults in a room.
beside_each_other() { # Two runs of one room at once, each of two faults.
    local seed
    . tests/tap.sh
    one() { tools/mutate --room parallel --only layout.c --tests '^parallel/test_layout$' --count 2 --seed "$1" --jobs 1 --out "$dir/$1" >"$dir/$1.log" 2>&1; }
    dir=$(mktemp -d)
    one 1 &
    one 2
    wait
    for seed in 1 2; do
        grep -q '^# parallel: . of 2 killed' "$dir/$seed.log" && [ "$(wc -l <"$dir/$seed")" -ge 2 ]
        say "two runs at once: number $seed" $? "$(tail -n 5 "$dir/$seed.log")"
    done
    rm -rf "$dir"
    finish
}
export -f beside_each_other
if command -v gcov >/dev/null; then
    suite -t 3600 "mutations: two runs at once" bash -c beside_each_other
    for room in $(tools/mutate --rooms); do
        suite -t 36000 "mutations: $room" tools/mutate --room "$room" --count "${MUTATE_COUNT:-100}" --seed "${MUTATE_SEED:-$(date +%s)}" --least 90 --tap
    done
else
    skipped "mutations" "no gcov"
fi
