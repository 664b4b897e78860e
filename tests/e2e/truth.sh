#!/usr/bin/env bash
# Compare twenty steps of every family, in fp32 and bf16, with the stored curves (bench/truth/families.py). This shows a change of arithmetic, whatever
# instructions this CPU has. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0
ok() { # name, command...
    n=$((n + 1))
    if "${@:2}" >"$work/out" 2>&1; then echo "ok $n - $1"; else
        echo "not ok $n - $1"
        tail -n 25 "$work/out"
    fi
}
ok "eight families train" python3 bench/truth/families.py run --out "$work/here.json" --steps 20 --jobs "$(nproc)" --threads 1 --lateen "${LATEEN:-build/lateen}"
ok "their losses are within the bounds of the kept curves" python3 bench/truth/families.py compare bench/results/truth_families_cpu.json "$work/here.json"
echo "1..$n"
