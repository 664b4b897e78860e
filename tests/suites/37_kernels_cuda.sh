# Compile every CUDA kernel for sm_80 and sm_90a with NVRTC and refuse unexplained spills. Needs libnvrtc, but no GPU: from the
# system, from LATEEN_NVRTC, or else from Python's package nvidia-cuda-nvrtc in a scratch environment; skipped when none can be had.
find_nvrtc() { # Sets LATEEN_NVRTC, for the suites behind this one too, where the system has none. False: nobody has one.
    local lib=${LATEEN_NVRTC:-} dir=build/nvrtc
    if [ -z "$lib" ] && ! build/lateen bench kernels --compile --only copy.cu; then
        if [ ! -d "$dir" ]; then
            python3 -m venv "$dir" && "$dir/bin/pip" install -q nvidia-cuda-nvrtc || rm -rf "$dir"
        fi
        lib=$(find "$dir" -name 'libnvrtc.so*' | head -1)
        if [ -z "$lib" ]; then return 1; fi
        export LATEEN_NVRTC=$PWD/$lib
    fi
}
if find_nvrtc >/dev/null 2>&1; then
    beside -t 900 "CUDA kernels: compile, registers, spills" bash -c '
        if build/lateen bench kernels --compile; then echo "ok 1 - every kernel compiles, no unexplained spill"; else echo "not ok 1 - kernels"; fi
        echo 1..1'
else
    skipped "CUDA kernels: compile, registers, spills" "no libnvrtc on this machine"
fi
