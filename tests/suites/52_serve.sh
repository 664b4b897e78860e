# The server as its clients see it: raw bytes, OpenAI's own client, the pages in a browser, its start and its end, the load generator.
beside "serve: raw clients" timeout 200 tests/e2e/serve.sh raw
beside "serve: OpenAI's client" timeout 200 tests/e2e/serve.sh openai
beside "serve: Anthropic's client" timeout 100 tests/e2e/serve.sh anthropic
beside "serve: Ollama's client" timeout 100 tests/e2e/serve.sh ollama
beside "serve: agents' frameworks" timeout 200 tests/e2e/serve.sh agents
beside "serve: requests with parts at random" timeout 100 tests/e2e/serve.sh bodies
beside "serve: what is kept between requests" timeout 100 tests/e2e/serve.sh state
beside "serve: start, keys, queue, end" timeout 100 tests/e2e/serve.sh life calls
beside "serve: every ending token, a model's own sampling" timeout 100 tests/e2e/serve.sh ends edges
beside "serve: a hostile client and operator" timeout 200 tests/e2e/serve.sh abuse
beside "serve: memory, keys, hosts" timeout 200 tests/e2e/serve.sh safe
beside "bench serve" timeout 100 tests/e2e/serve.sh bench
suite "serve: pages in Chromium" timeout 200 tests/e2e/serve.sh pages # Takes all cores.
