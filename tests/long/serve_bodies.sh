suite "serve: requests with parts at random, ten minutes" env SERVE_BODIES_S=600 timeout 900 tests/e2e/serve.sh bodies
