# make test kills a training run 8 times; here it is killed 200 times, and every resumed run must end with the same bits.
suite -t 7200 "kill -9 and resume, 200 times" tests/e2e/kill_resume.sh 200
