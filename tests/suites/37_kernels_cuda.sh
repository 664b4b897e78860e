# Compile every CUDA kernel with NVRTC, for sm_90a (tests/long/kernels.sh: for all that they are shipped for), and refuse unexplained spills. Needs no GPU.
. tests/nvrtc.sh
# How specialisations are read: one that goes on in the next line is one, one in the midst of a line is told and not lost.
specs() {
    local dir
    . tests/tap.sh
    dir=$(mktemp -d)
    echo "# none" >"$dir/spills.txt"
    reads() { # name, the essay's lines, what is printed
        { printf '/* spec_test.cu\n%s */\n' "$2" && echo 'extern "C" __global__ void k(int *y) { y[0] = BM * 100 + BN; }'; } >"$dir/copy.cu"
        LATEEN_KERNEL_DIR=$dir build/lateen bench kernels --compile --only copy.cu "${@:4}" >"$dir/log" 2>&1
        grep -qE "$3" "$dir/log"
        say "$1" $? "$(tail -n 3 "$dir/log")"
    }
    reads "a specialisation on two lines" $' * @spec sm_90a: BM=1\n *     BN=2\n * Words = prose.' 'copy.cu +k +sm_90a .* BM=1 BN=2$'
    reads "two of two architectures, two children" $' * @spec sm_80 sm_90a: BM=1 BN=2\n * @spec sm_80 sm_90a: BM=3 BN=4' '^4 kernels of 4 specialisations'
    reads "of one architecture alone" $' * @spec sm_80 sm_90a: BM=1 BN=2\n * @spec sm_80: BM=3 BN=4' '^1 kernels of 1 specialisations' --arch sm_90a
    reads "a specialisation within a line" $' * @spec sm_90a: BM=1 BN=2 @spec sm_90a: BM=3 BN=4' 'copy.cu: a @spec that does not begin its line'
    reads "an error of one is told with its defines" $' * @spec sm_90a: BM=1 BN=2\n * @spec sm_90a: BM=1' 'FAILED: kernel copy.cu \[BM=1\] sm_90a does not compile'
    rm -rf "$dir"
    finish
}
export -f specs
if find_nvrtc >/dev/null 2>&1; then
    suite "CUDA kernels: specialisations" bash -c specs
    suite -t 900 "CUDA kernels: compile, registers, spills" bash -c '
        if build/lateen bench kernels --compile --arch sm_90a; then echo "ok 1 - every kernel compiles, no unexplained spill"; else echo "not ok 1 - kernels"; fi
        echo 1..1'
else
    skipped "CUDA kernels: compile, registers, spills" "no libnvrtc on this machine"
fi
