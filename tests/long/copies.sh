# Copies with random faults of store and hub: 200 seeds; tests/suites/53_copy.sh: six.
suite -t 3600 "200 seeds of faults of copies" python3 tests/e2e/copies.py build/lateen 200
suite "shards that stream in" python3 tests/e2e/shards.py build/lateen all
