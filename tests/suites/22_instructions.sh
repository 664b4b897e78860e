# The objects of an instruction set contain no instruction that a CPU of this set may lack: no AVX
# vector instruction in the portable ones, no AVX-512 in those for AVX2, and nothing beyond
# Cascade Lake's AVX-512, except in the objects that the Makefile names.
instructions() { # object: "mnemonic operands" a line
    objdump -d --no-show-raw-insn "$1" | awk -F'\t' 'NF > 1 { print $2 }'
}
later='bf16|^v[a-z0-9]*[ps]h |^vcvt[a-z0-9]*([ps]h2|2[ps]h)|^vmovw |^vperm([it]2)?b |^vpmultishift|^v?p(compress|expand)[bw] |^vpsh[lr]d|^vpmadd52|^vpopcnt|^vpshufbit|gf2p8|^v?aes|clmul|^vp2inter'
f16c='^vcvt(ph2ps|ps2ph) '
beyond() { # instruction set: lines that it does not allow
    case $1 in
    portable) grep -E '^v' ;;
    avx2) grep -E '%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])' ;;
    avx512) grep -vE "$f16c" | grep -E "$later" ;;
    esac
}
check_objects() {
    local named file object isa n=0 found
    named=" $(sed -n 's/^ISA_BF16 := //p' Makefile) "
    for isa in portable avx2 avx512; do
        for file in src/kernels/cpu/isa/*.c; do
            object=build/${file%.c}.$isa.o
            found=$(instructions "$object" | beyond $isa | sort | uniq -c | sort -rn | head -5)
            n=$((n + 1))
            case $isa:$named in
            avx512:*" $(basename "$file" .c) "*)
                if [ -n "$found" ]; then echo "ok $n - $object has BF16 instructions"; else echo "not ok $n - $object has no BF16 instructions"; fi ;;
            *)  if [ -z "$found" ]; then echo "ok $n - $object"; else printf 'not ok %d - %s\n%s\n' $n "$object" "$found"; fi ;;
            esac
        done
    done
    for found in vpdpbusd vpdpwssd zmm; do
        if instructions build/src/kernels/cpu/isa/quant.avx512.o | grep -q $found; then echo "ok - $found in quant"; else echo "not ok - no $found in quant"; fi
    done
    echo "# end"
}
if [ "$(uname -m)" = x86_64 ] && command -v objdump >/dev/null; then
    export later f16c
    export -f instructions beyond check_objects
    beside "instructions of the CPU kernels" bash -c check_objects
else
    skipped "instructions of the CPU kernels" "not x86-64, or no objdump"
fi
