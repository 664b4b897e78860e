# All cases of the emulated GPU (tests/emu/README.md): every op of an A100 and of an H100 with AddressSanitizer, the latter also with random sizes; fused steps,
# stored weights, warm starts, families served.
if command -v g++ >/dev/null; then
    suite -t 1200 "build the emulated GPU" bash -c 'make -s -j"$(nproc)" emu unit-programs build/optest && printf "ok 1 - built\n1..1\n"'
    suite -t 1800 "emulated GPU: optest --check, AddressSanitizer" tests/emu/ops.sh --asan
    suite -t 1800 "emulated H100: optest --check, AddressSanitizer" env LATEEN_EMU_ROUNDS=4 tests/emu/ops.sh --asan --h100
    for program in kernels/test_cuda_quant kernels/test_cuda_quant_experts model/test_stored_experts kernels/test_cuda_fuse kernels/test_cuda_fuse_experts model/test_cuda_lora model/test_cuda_stored model/test_kept_logits model/test_stages model/test_score align/test_exact serve/test_device serve/test_warm serve/test_adapters serve/test_blend serve/test_window serve/test_page_host serve/test_draft_device serve/test_draft_head; do
        beside -t 900 "emulated GPU: $program" env CMOCKA_MESSAGE_OUTPUT=TAP tests/emu/run "build/tests/unit/$program"
    done
    beside -t 900 "two emulated H100: align/test_exact" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_EMU_CAPABILITY=90 LATEEN_EMU_DEVICES=2 LATEEN_EMU_MIB=512 tests/emu/run build/tests/unit/align/test_exact
    beside -t 1800 "emulated GPU: every family, all levels of recomputation" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_ALL=1 tests/emu/run build/tests/unit/model/test_cuda
    beside -t 900 "emulated GPU: a seed in generate, chat and serve" env SEEDS_DEVICE=cuda tests/e2e/serve.sh seeds
    beside -t 900 "two ranks on emulated GPUs: training, all of it" tests/emu/train_ranks.sh all
    beside -t 900 "two ranks on emulated GPUs: the model divided, all of it" tests/emu/train_axes.sh all
    beside -t 900 "emulated GPUs: a bit flips in a running rank" env LATEEN_EMU_DEVICES=3 LATEEN_EMU_MIB=1200 tests/emu/run python3 tests/e2e/replicas.py build/lateen quick cuda
    beside -t 900 "two ranks on emulated GPUs: adapters" tests/emu/train_adapters.sh
    beside -t 900 "emulated GPUs: several adapters at once, all of it" tests/emu/train_at_once.sh all
    beside -t 900 "emulated GPUs: objectives over preferences" tests/emu/preferences.sh
    beside -t 900 "emulated GPU: families served" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_ALL=1 tests/emu/run build/tests/unit/serve/test_families_gpu
else
    skipped "emulated GPU" "no g++ on this machine"
fi
