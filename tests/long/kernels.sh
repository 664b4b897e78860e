# Compile every CUDA kernel for every architecture that it ships for: registers, and no unexplained spill (make test: one specialisation of each set of -D words).
. tests/nvrtc.sh
if find_nvrtc >/dev/null 2>&1; then
    suite -t 1800 "CUDA kernels: compile for all architectures" bash -c '
        if build/lateen bench kernels --compile; then echo "ok 1 - every kernel compiles, no unexplained spill"; else echo "not ok 1 - kernels"; fi
        echo 1..1'
else
    skipped "CUDA kernels: compile for all architectures" "no libnvrtc on this machine"
fi
