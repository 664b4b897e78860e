#!/usr/bin/env bash
# Lint, as TAP: include order between rooms, formatting, names of machines and hosts, READMEs of rooms, long files.
set -u
cd "$(dirname "$0")/.."
n=0 bad=0
check() { # name, text of the findings (empty: fine)
    n=$((n + 1))
    if [ -z "$2" ]; then echo "ok $n - $1"; else
        echo "not ok $n - $1"
        echo "$2" | head -20
        bad=1
    fi
}

# A room may include itself and rooms of lower rank; train and serve are equal and never include each other. ops is the list of op cases
# (tests/ops), which `lateen doctor --ops` and `lateen bench cpu` read too.
order=$(awk '
    BEGIN {
        split("base:0 tensor:1 kernels:2 comm:2 data:2 model:3 platform:3 parallel:4 train:5 serve:5 align:6 plan:6 ops:6 cli:7", rows, " ")
        for (i in rows) { split(rows[i], p, ":"); rank[p[1]] = p[2] }
    }
    /^#include "/ {
        split(FILENAME, f, "/"); room = f[2]; split($2, q, "[\"/]"); other = q[2]
        if (other == "lateen" || other == room) next
        if (!(other in rank)) { print FILENAME ": includes unknown room " $2; next }
        if (rank[other] >= rank[room]) print FILENAME ": " room " may not include " $2
    }' $(find src -name '*.c' -o -name '*.h'))
check "include order" "$order"

check "CUDA headers only in kernels/cuda and comm/nccl.c" \
    "$(grep -lE '^#include <(cuda|nvrtc|cublas|nccl|nvml)' -r src include | grep -v -e '^src/kernels/cuda/' -e '^src/comm/nccl.c')"
check "MPI only in comm/mpi.c" "$(grep -lE '^#include <mpi' -r src include | grep -v '^src/comm/mpi.c')"
check "public headers include only public headers" "$(grep -HE '^#include "' include/lateen/*.h | grep -v '"lateen/')"

if command -v clang-format >/dev/null; then
    check "clang-format" "$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v unicode_tables | xargs clang-format --dry-run -Werror 2>&1 || echo "clang-format failed")"
else
    echo "ok $((n += 1)) - clang-format # SKIP not installed"
fi
check "no machine paths" "$(git grep -nIE '/(work|farm|root|home)/' -- . ':!*.csv' ':!*.jsonl' ':!tests/lint.sh' ':!data/*')"
readmes=$(for d in src/*/; do [ -f "$d/README.md" ] || echo "$d has no README.md"; done
    for f in $(find src -name README.md); do [ "$(wc -l <"$f")" -le 40 ] || echo "$f is longer than 40 lines"; done)
check "a README of at most 40 lines in each room" "$readmes"
check "no source file over 800 lines" "$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v unicode_tables | xargs wc -l | awk '$2 != "total" && $1 > 800')"
# Characters, not bytes: drawings are UTF-8. Tables made by a tool may be wider.
check "no line of C or CUDA over 100 columns" "$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v unicode_tables | python3 -c '
import sys
for path in sys.stdin.read().split():
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        if len(line.rstrip("\n")) > 100:
            print(f"{path}:{number}: {len(line) - 1} columns")')"
check "no to-do notes without an issue" "$(git grep -nwE 'TODO|FIXME' -- src include | grep -vE '#[0-9]+')"
echo "1..$n"
exit $bad
