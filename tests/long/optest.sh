# Every implementation of every op on the CPU in all cases; make test leaves out those of more than 20 million operations, which are mostly for tensor cores.
suite -t 1200 "build optest" bash -c 'make -s -j"$(nproc)" build/optest && printf "ok 1 - built\n1..1\n"'
suite -t 900 "optest --check, all cases" env OMP_WAIT_POLICY=passive build/optest --check --tap
