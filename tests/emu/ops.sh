#!/usr/bin/env bash
# Every op's cases on the emulated GPU, as many ops at once as there are cores. Prints TAP.   tests/emu/ops.sh [--asan]
set -eu
cd "$(dirname "$0")/../.."
export out=build/emu/ops${1:-}
mkdir -p $out && rm -f $out/*
one() { # op: a program that dies without a word is a failure; an op without cases is none.
    local tap=$out/$1
    tests/emu/run $kind build/optest --check --backend cuda --op "$1" --tap >"$tap" 2>&1 || grep -qE '^(1\.\.0|not ok)' "$tap" ||
        echo "not ok - $1 died" >>"$tap"
}
export -f one
export kind=${1:-} OMP_NUM_THREADS=1 LATEEN_EMU_WORKERS=1 LATEEN_EMU_MADE=1
make -s emu
sed -n '/define LT_OP_MAP/,/^$/s/.*X(\([a-z_]*\),.*/\1/p' src/tensor/ops.h | xargs -P "$(nproc)" -I{} bash -c 'one {}'
cat $out/*
