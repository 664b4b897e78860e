# The GPU's host side and the kernels of sm_80 without a GPU (tests/emu/README.md): kernels that are wrong on purpose must be found out; then every op
# against the reference, its kernels under AddressSanitizer (without it by hand, tests/emu/ops.sh: the same cases, nothing that these would miss);
# quantised weights; families against the goldens; training beside the CPU's.
if command -v g++ >/dev/null; then
    suite "build the emulated GPU" bash -c 'make -s -j"$(nproc)" emu build/emu/faults build/optest && echo "ok 1 - built"'
    suite "emulated GPU: faults are found" env LATEEN_KERNEL_DIR=tests/emu/faults tests/emu/run build/emu/faults
    beside "emulated GPU: optest --check, AddressSanitizer" tests/emu/ops.sh --asan
    for program in kernels/test_cuda_quant model/test_cuda model/test_cuda_stored serve/test_device; do
        beside "emulated GPU: $program" env CMOCKA_MESSAGE_OUTPUT=TAP tests/emu/run "build/tests/unit/$program"
    done
    beside "emulated GPU: training" tests/emu/train.sh
else
    suite "emulated GPU" echo "ok 1 # SKIP no g++ on this machine"
fi
