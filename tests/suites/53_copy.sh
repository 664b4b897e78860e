# Copies between files, an object store that checks signatures, a web server and a model hub, with faults; tests/long/copies.sh: 200 seeds of faults.
beside "copies" python3 tests/e2e/copies.py build/lateen 6
