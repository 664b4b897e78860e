# Every implementation of every op against the reference in double, gradients against finite differences, the reference against PyTorch.
# Threads wait passively: the check runs with more of them than there may be cores. Each takes little more than one core, so they run side by side.
suite "build optest" bash -c 'make -s -j"$(nproc)" build/optest && echo "ok 1 - built"'
beside "optest --check" env OMP_WAIT_POLICY=passive build/optest --check --tap
for isa in portable avx2; do
    beside "optest --check, LATEEN_ISA=$isa" env OMP_WAIT_POLICY=passive LATEEN_ISA=$isa build/optest --check --tap
done
# BF16 dot products, also where multiply-adds are faster (no case runs where the CPU has none).
beside "optest --check, LATEEN_BF16_DOT=1" env OMP_WAIT_POLICY=passive LATEEN_BF16_DOT=1 build/optest --check --op matmul --tap
beside "optest --grad --golden" env OMP_WAIT_POLICY=passive build/optest --grad --golden --tap
