# shellcheck shell=bash
# libnvrtc, for suites that compile kernels without a GPU: from the system, from LATEEN_NVRTC, or else from Python's package nvidia-cuda-nvrtc in a scratch
# environment.

# Sets LATEEN_NVRTC if the system has no libnvrtc, for the later suites too. False: none was found.
find_nvrtc() {
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
