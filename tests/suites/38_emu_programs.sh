# On the emulated GPU that 36_emu.sh built: quantised weights; families against the goldens; the
# engine; training compared with training on the CPU. Slower programs for rarer cases are in
# tests/long/emu.sh.
if command -v g++ >/dev/null; then
    for program in kernels/test_hash kernels/test_moments kernels/test_cuda_quant kernels/test_cuda_quant_experts model/test_stored_experts kernels/test_cuda_cached kernels/test_cuda_packs kernels/test_cuda_fuse_experts model/test_packs serve/test_row_order model/test_cuda model/test_stages model/test_objective model/test_head_rows model/test_kept_logits model/test_shared model/test_cuda_lora model/test_lora_joined serve/test_device serve/test_families_gpu platform/test_health_work; do
        beside -t 900 "emulated GPU: $program" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_CORE=1 tests/emu/run "build/tests/unit/$program"
    done
    beside -t 900 "two emulated GPUs: align/test_exact" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_CORE=1 LATEEN_EMU_DEVICES=2 LATEEN_EMU_MIB=512 tests/emu/run build/tests/unit/align/test_exact
    for program in serve/test_coded_prompts kernels/test_cuda_quant_experts; do
        beside -t 900 "emulated H100: $program" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_CORE=1 LATEEN_EMU_CAPABILITY=90 LATEEN_EMU_SMS=3 tests/emu/run "build/tests/unit/$program"
    done
    beside -t 900 "two emulated GPUs at the same time" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_EMU_DEVICES=2 tests/emu/run build/tests/unit/serve/test_devices
    for program in test_verbs test_nccl; do
        beside -t 900 "four emulated GPUs: $program" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_CORE=1 LATEEN_EMU_DEVICES=4 LATEEN_EMU_MIB=512 tests/emu/run "build/tests/unit/comm/$program"
    done
    beside -t 900 "three emulated GPUs: train/test_replicas" env CMOCKA_MESSAGE_OUTPUT=TAP LATEEN_TEST_CORE=1 LATEEN_TEST_DEVICE=cuda LATEEN_EMU_LATE_DOWNLOADS_MS=20 LATEEN_EMU_DEVICES=3 LATEEN_EMU_MIB=1200 tests/emu/run build/tests/unit/train/test_replicas
    beside -t 900 "emulated GPU: training" tests/emu/train.sh
    beside -t 900 "two ranks on emulated GPUs: training" tests/emu/train_ranks.sh
    beside -t 900 "two ranks on emulated GPUs: the model divided" tests/emu/train_axes.sh
    beside -t 900 "emulated GPUs: several adapters at once" tests/emu/train_at_once.sh
    beside -t 900 "emulated GPU: wrong settings" tests/emu/settings.sh
fi
