#!/usr/bin/env bash
# Invalid settings in the environment: each must give one clear message, and never another GPU or
# compiler than the one requested. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
export LATEEN_EMU_MADE=1
n=0
says() { # text, setting, arguments...
    local text=$1 setting=$2 got
    shift 2
    n=$((n + 1))
    got=$(tests/emu/run env "$setting" build/lateen "$@" 2>&1)
    if grep -qF -- "$text" <<<"$got"; then echo "ok $n - $setting: $text"; else echo "not ok $n - $setting: $(head -c 300 <<<"$got")"; fi
}
for wrong in abc -1 1x 123456789; do
    says "LATEEN_CUDA_DEVICE='$wrong' is not the number of a GPU" LATEEN_CUDA_DEVICE=$wrong tune gemm --m 64 --n 64 --k 64
done
says "GPU 7 of 1" LATEEN_CUDA_DEVICE=7 tune gemm --m 64 --n 64 --k 64
says "GPU 7 of 1" LATEEN_CUDA_DEVICE=7 tune sgemm --m 64 --n 64 --k 64
says "GPU 7 of 1" LATEEN_CUDA_DEVICE=7 bench kernels --check --op quant
says "device cuda: GPU 3 of 2" LATEEN_EMU_DEVICES=2 generate --device cuda:3 --prompt a
says "device cuda: GPU 1 of 1" LATEEN_CUDA_DEVICE=0 bench train --device cuda:1
says "device 'gpu' is not one of cpu[:CORES]|cuda[:N]|auto" LATEEN_CUDA_DEVICE=0 generate --device gpu --prompt a
says '"index": 1' LATEEN_EMU_DEVICES=2 doctor --no-measure --json
says "no kernels: LATEEN_NVRTC is not a libnvrtc (the CUDA run-time compiler): /nonsense: cannot open" LATEEN_NVRTC=/nonsense doctor --no-measure
says "kernels by NVRTC 12.4" LATEEN_CUDA_DEVICE= doctor --no-measure
# If the file cannot be written, nothing is measured.
n=$((n + 1))
got=$(timeout 60 tests/emu/run build/lateen bench kernels --op quant --json /nonsense/rows.json 2>&1)
if grep -qF "cannot write /nonsense/rows.json: No such file or directory" <<<"$got" && ! grep -q bandwidth <<<"$got"; then
    echo "ok $n - an unwritable --json is refused before anything is measured"
else
    echo "not ok $n - an unwritable --json: $(head -c 300 <<<"$got")"
fi
echo "1..$n"
