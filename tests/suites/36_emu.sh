# The GPU's host side and its kernels without a GPU (tests/emu/README.md): kernels that are wrong on purpose must be found out; then every op against the
# reference, those of sm_80 and what sm_90a has of its own, in cases of little work. All cases, random sizes and AddressSanitizer: tests/long/emu.sh.
if command -v g++ >/dev/null; then
    suite -t 1200 "build the emulated GPU" bash -c 'make -s -j"$(nproc)" emu build/emu/faults build/optest && printf "ok 1 - built\n1..1\n"'
    suite -t 900 "emulated GPU: faults are found" env LATEEN_KERNEL_DIR=tests/emu/faults tests/emu/run build/emu/faults
    suite -t 900 "emulated GPU: optest --check, core cases" tests/emu/ops.sh --core # Takes all cores, as the next.
    suite -t 900 "emulated H100: optest --check, core cases" tests/emu/ops.sh --core --h100
else
    skipped "emulated GPU" "no g++ on this machine"
fi
