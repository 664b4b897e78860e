# The server as its clients see it: raw bytes, OpenAI's own client, the pages in a browser, its start and its end, the load generator.
suite "serve: raw clients" timeout 200 tests/e2e/serve.sh raw
suite "serve: OpenAI's client" timeout 200 tests/e2e/serve.sh openai
suite "serve: pages in Chromium" timeout 200 tests/e2e/serve.sh pages
suite "serve: start, keys, queue, end" timeout 100 tests/e2e/serve.sh life
suite "serve: a hostile client and operator" timeout 200 tests/e2e/serve.sh abuse
suite "bench serve" timeout 100 tests/e2e/serve.sh bench
