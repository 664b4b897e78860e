# The GPU's host code and kernels without a GPU (tests/emu/README.md). Kernels with deliberate faults must be detected. Then every op is compared with the
# reference, for sm_80 and for the kernels that only sm_90a has, in small cases. All cases, random sizes and AddressSanitizer are in tests/long/emu.sh.
if command -v g++ >/dev/null; then
    beside -t 900 "emulated GPU: faults are found" env LATEEN_KERNEL_DIR=tests/emu/faults tests/emu/run build/emu/faults
    beside -t 900 "emulated GPU: optest --check, core cases" tests/emu/ops.sh --core
    beside -t 900 "emulated H100: optest --check, core cases" tests/emu/ops.sh --core --h100
else
    skipped "emulated GPU" "no g++ on this machine"
fi
