# Compile every CUDA kernel file with NVRTC for sm_80 and for sm_90a, each set of -D words once (tests/long/kernels.sh: every specialisation), and refuse
# unexplained spills. Needs no GPU.
. tests/nvrtc.sh
# The specialisations to compile come from the launchers (src/kernels/cuda/specs.h), for both architectures or for one; an error names the known words.
specs() {
    local dir
    . tests/tap.sh
    dir=$(mktemp -d)
    echo "# none" >"$dir/spills.txt"
    tells() { # name, the kernel's text, what is printed
        echo "$2" >"$dir/copy.cu"
        LATEEN_KERNEL_DIR=$dir build/lateen bench kernels --compile --only copy.cu "${@:4}" >"$dir/log" 2>&1
        grep -qE "$3" "$dir/log"
        say "$1" $? "$(tail -n 3 "$dir/log")"
    }
    fine='extern "C" __global__ void copy(int *y) { y[0] = UNROLL; }'
    tells "two architectures, two children" "$fine" '^2 kernels of 2 specialisations'
    tells "of one architecture alone" "$fine" '^1 kernels of 1 specialisations' --arch sm_90a
    tells "the words of the launch" "$fine" 'copy.cu +copy +sm_80 .* UNROLL=4$' --arch sm_80
    # decode.cu has five sets of words per architecture, each with several values.
    mkdir "$dir/attention"
    echo "$fine" | sed 's/UNROLL/HEAD_DIM/' >"$dir/attention/decode.cu"
    LATEEN_KERNEL_DIR=$dir build/lateen bench kernels --compile --only attention/decode.cu --sample >"$dir/log" 2>&1
    grep -q '^10 kernels of 10 specialisations' "$dir/log"
    say "a sample has one specialisation of each set of words, for both" $? "$(tail -n 3 "$dir/log")"
    tells "an error of one is told with its defines" 'extern "C" __global__ void copy(int *y) { y[0] = UNROLL + BM; }' \
        'FAILED: kernel copy.cu \[UNROLL=4\] sm_90a does not compile'
    rm -rf "$dir"
    finish
}
export -f specs
if find_nvrtc >/dev/null 2>&1; then
    beside "CUDA kernels: specialisations" bash -c specs
    beside -t 900 "CUDA kernels: compile, registers, spills" bash -c '
        if build/lateen bench kernels --compile --sample; then echo "ok 1 - every kernel compiles, no unexplained spill"; else echo "not ok 1 - kernels"; fi
        echo 1..1'
else
    skipped "CUDA kernels: compile, registers, spills" "no libnvrtc on this machine"
fi
