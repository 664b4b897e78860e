# Compile every CUDA kernel for sm_80 and sm_90a with NVRTC and refuse unexplained spills. Needs libnvrtc, but no GPU: from the
# system, from LATEEN_NVRTC, or else from Python's package nvidia-cuda-nvrtc in a scratch environment; skipped when none can be had.
kernels_cuda() {
    local lib=${LATEEN_NVRTC:-} dir=build/nvrtc
    if [ -z "$lib" ] && ! build/lateen bench kernels --compile --only copy.cu >/dev/null 2>&1; then
        if [ ! -d "$dir" ]; then
            python3 -m venv "$dir" && "$dir/bin/pip" install -q nvidia-cuda-nvrtc || rm -rf "$dir"
        fi
        lib=$(find "$dir" -name 'libnvrtc.so*' 2>/dev/null | head -1)
        if [ -z "$lib" ]; then echo "ok 1 # SKIP no libnvrtc on this machine"; return 0; fi
        export LATEEN_NVRTC=$PWD/$lib
    fi
    if build/lateen bench kernels --compile; then echo "ok 1 - every kernel compiles, no unexplained spill"; else echo "not ok 1 - kernels"; fi
}
suite "CUDA kernels: compile, registers, spills" kernels_cuda
