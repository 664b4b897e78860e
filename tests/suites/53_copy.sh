# Copies between files, an object store that checks signatures, a web server and a model hub, with faults; tests/long/copies.sh: 200 seeds of faults.
beside "copies" python3 tests/e2e/copies.py build/lateen 6
# Checkpoints that go to an object store while the run goes on, and runs that begin from there elsewhere.
beside "mirror" python3 tests/e2e/mirror.py build/lateen
# Shards that stream in through a folder with a budget; tests/long/copies.sh: runs that share it, faults, web servers.
beside "shards" python3 tests/e2e/shards.py build/lateen
