# Faults of ranks with emulated GPUs; make test: 8.
if command -v g++ >/dev/null; then
    suite -t 3600 "200 faults of ranks with emulated GPUs" env CMOCKA_MESSAGE_OUTPUT=TAP FAULT_SEEDS="${FAULT_SEEDS:-1..200}" LATEEN_EMU_DEVICES=4 LATEEN_EMU_MIB=512 tests/emu/run build/tests/unit/comm/test_nccl
fi
