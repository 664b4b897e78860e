# Every implementation of every op against the reference in double, gradients against finite differences, the reference against PyTorch.
# Threads wait passively: the check runs with more of them than there may be cores. Each takes little more than one core, so they run side by side.
# All kernels that the CPU can run, including those of smaller instruction sets, in cases of at most 20 million operations (tests/long/optest.sh: all).
beside "optest --check" env OMP_WAIT_POLICY=passive build/optest --check --mflop 20 --tap
# On a CPU with a smaller instruction set, only ops that call others through the table, or that ask what the CPU can do, behave differently. Check these again as on such a CPU.
asking() { grep -lE 'lt_backend_cpu\(|lt_cpu_features_get\(' "$@" | grep -v '/probe\.c$'; }
through_table() {
    sed -n 's/^lt_err LT_ISA_NAME(lt_cpu_\([a-z_]*\))(.*/\1/p' $(asking src/kernels/cpu/isa/*.c)
    sed -n 's/^static lt_err \([a-z_]*\)_run(.*/\1/p' src/kernels/cpu/lists.c
}
capped() { # instruction set
    local op n_ops=0
    . tests/tap.sh
    for op in $(through_table); do
        within env LATEEN_ISA="$1" build/optest --check --op "$op" --tap
        n_ops=$((n_ops + 1))
    done
    [ "$n_ops" -ge 4 ] && ! asking src/kernels/cpu/isa/*.h
    say "$n_ops ops that call others, no header that does (else mend through_table in tests/suites/20_optest.sh)" $?
    finish
}
export -f asking through_table capped
for isa in portable avx2; do
    beside "optest --check, LATEEN_ISA=$isa" env OMP_WAIT_POLICY=passive bash -c "capped $isa"
done
# BF16 dot products, also on CPUs where multiply-adds are faster (no case runs on a CPU without
# them).
beside "optest --check, LATEEN_BF16_DOT=1" env OMP_WAIT_POLICY=passive LATEEN_BF16_DOT=1 build/optest --check --op matmul --tap
beside "optest --grad --golden" env OMP_WAIT_POLICY=passive build/optest --grad --golden --tap
