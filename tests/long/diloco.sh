# make test compares three of PyTorch's runs over sites and kills twice; here all of them, on further meshes, with 20 kills.
suite -t 1800 "sites that train apart: all" python3 tests/e2e/diloco.py build/lateen long
