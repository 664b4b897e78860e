#!/usr/bin/env bash
# Run the cases of ops on the emulated GPU, as many ops at once as there are cores. Prints TAP.
#   tests/emu/ops.sh [--core | --asan]           every op, on an A100
#   tests/emu/ops.sh [--core | --asan] --h100    kernels that only an H100 has, in a random order (LATEEN_EMU_SEED, 1), then with random sizes (LATEEN_EMU_ROUNDS, 1)
#   --core    cases of at most 10 million operations, on an H100 20, each in one type and with tensors contiguous or strided (check.c), no random sizes, one op at once: what make test runs
set -eu
cd "$(dirname "$0")/../.."
# Before OMP_NUM_THREADS is set, which nproc obeys.
kind='' mflop=0 types='' names=build/emu/ops cores=$(nproc)
for option in "$@"; do
    case $option in
    --asan) kind=--asan ;;
    --core) mflop=10 cores=1 types=--core ;;
    --h100) export LATEEN_EMU_CAPABILITY=90 LATEEN_EMU_SEED="${LATEEN_EMU_SEED:-1}" ;;
    *) echo "usage: tests/emu/ops.sh [--core | --asan] [--h100]" >&2; exit 2 ;;
    esac
    names+=$option
done
# wgmma does not take the smallest products.
if [ -n "${LATEEN_EMU_CAPABILITY:-}" ] && [ "$mflop" != 0 ]; then mflop=20; fi
export kind mflop types out=$names
mkdir -p "$out" && rm -f "$out"/*
# op, op:implementation, op:implementation:rounds or op:implementation:rounds:cases. A program
# that dies without output is a failure; an op without cases is not.
one() {
    local tap=$out/$1 op impl rounds cases
    IFS=: read -r op impl rounds cases <<<"$1"
    tests/emu/run $kind build/optest --check --backend cuda --op "$op" --impl "$impl" --case "$cases" --mflop "$mflop" $types --random "${rounds:-0}" --seed "${LATEEN_EMU_SEED:-1}" --tap >"$tap" 2>&1 || grep -qE '^(1\.\.0|not ok)' "$tap" ||
        echo "not ok - $1 died" >>"$tap"
}
export -f one
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu
export OMP_NUM_THREADS=1 LATEEN_EMU_WORKERS=1 LATEEN_EMU_MADE=1
if [ -n "${LATEEN_EMU_CAPABILITY:-}" ]; then
    varied=(attention_bwd:wgmma attention_fwd:wgmma matmul:{wgmma,few} matmul_act:wgmma matmul_scaled:wgmma)
    rounds=("${varied[@]/%/:${LATEEN_EMU_ROUNDS:-1}}")
    choose=choose
    # Choosing from one slice of a row is the same as on an A100.
    [ "$mflop" = 0 ] || { rounds=() choose=choose:::slices; }
    printf '%s\n' "${rounds[@]}" "${varied[@]}" "$choose" attention_paged:mma matmul:sgemm matmul_grouped:wgmma
else
    sed -n '/define LT_OP_MAP/,/^$/s/.*X(\([a-z_]*\),.*/\1/p' src/tensor/ops.h
fi | xargs -P "$cores" -I{} bash -c 'one {}'
# The results get one plan; each op's own plan is checked.
cat "$out"/* | sed -E '/^1\.\.[0-9]+$/d'
for tap in "$out"/*; do
    plan=$(sed -nE 's/^1\.\.([0-9]+)$/\1/p' "$tap") results=$(grep -cE '^(not )?ok ' "$tap" || true)
    if ! grep -q '^not ok' "$tap" && [ "$plan" != "$results" ]; then echo "not ok - ${tap##*/}: $results results, planned: ${plan:-none}"; fi
done
echo "# end"
