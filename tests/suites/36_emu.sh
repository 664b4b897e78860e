# The GPU's host side and its kernels without a GPU (tests/emu/README.md): kernels that are wrong on purpose must be found out; then every op against the
# reference, those of sm_80 and what sm_90a has of its own, that with random sizes besides, under AddressSanitizer (without it by hand,
# tests/emu/ops.sh: the same cases, nothing that these would miss). What takes less time is in 38_emu_programs.sh, behind NVRTC's compilation of all
# kernels, which takes one core for two minutes.
if command -v g++ >/dev/null; then
    suite -t 1200 "build the emulated GPU" bash -c 'make -s -j"$(nproc)" emu build/emu/faults build/optest && printf "ok 1 - built\n1..1\n"'
    suite -t 900 "emulated GPU: faults are found" env LATEEN_KERNEL_DIR=tests/emu/faults tests/emu/run build/emu/faults
    beside -t 900 "emulated GPU: optest --check, AddressSanitizer" tests/emu/ops.sh --asan
    beside -t 900 "emulated H100: optest --check, AddressSanitizer" tests/emu/ops.sh --asan --h100
else
    skipped "emulated GPU" "no g++ on this machine"
fi
