suite -t 900 "serve: requests with parts at random, ten minutes" env SERVE_BODIES_S=600 tests/e2e/serve.sh bodies
