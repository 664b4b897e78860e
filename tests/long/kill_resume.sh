# make test kills a training run 8 times; here 25 runs are killed 8 times each, and every one must end with the same bits.
suite -t 7200 "kill -9 and resume, 200 times" python3 tests/e2e/kill_resume.py build/lateen 8 25
