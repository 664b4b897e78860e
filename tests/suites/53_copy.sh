# Copies between files, an object store that checks signatures, a web server and a model hub, with
# faults; tests/long/copies.sh: 200 seeds of faults.
beside "copies" python3 tests/e2e/copies.py build/lateen 6
# Checkpoints that are copied to an object store during the run, and runs elsewhere that begin
# from them.
beside "mirror" python3 tests/e2e/mirror.py build/lateen
# Shards that are streamed through a folder of limited size; tests/long/copies.sh: runs that share
# it, faults, web servers.
beside "shards" python3 tests/e2e/shards.py build/lateen
