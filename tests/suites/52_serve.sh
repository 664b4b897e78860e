# The server as its clients see it: raw bytes; clients of OpenAI, Anthropic and Ollama; the pages
# in a browser; start and stop; the load generator. If clang is installed, 60_sanitizers.sh sends
# the raw requests to a server under AddressSanitizer instead.
command -v clang >/dev/null || beside "serve: raw clients" tests/e2e/serve.sh raw
beside "serve: OpenAI's client" tests/e2e/serve.sh openai
beside "serve: Anthropic's client" tests/e2e/serve.sh anthropic
beside "serve: Ollama's client" tests/e2e/serve.sh ollama
beside "serve: agents' frameworks" tests/e2e/serve.sh agents
beside "serve: groups of candidates" tests/e2e/serve.sh groups
beside "serve: adapters that requests choose" tests/e2e/serve.sh adapters
beside "serve: models that judge texts" tests/e2e/serve.sh scores
beside "serve: several models" tests/e2e/serve.sh models
beside "serve: filling in" tests/e2e/serve.sh infill
beside "serve: contexts that are shifted" tests/e2e/serve.sh shift_context
beside "serve: pages of texts in files" tests/e2e/serve.sh slots kept disk
beside "serve: a draft model" tests/e2e/serve.sh drafts
beside "serve: control of reasoning" tests/e2e/serve.sh control
beside "serve: the model that reasons" tests/e2e/serve.sh reasoner
beside "serve: files and batches" tests/e2e/serve.sh batches
beside "serve: fine-tuning" tests/e2e/serve.sh tuning
beside "serve: fine-tuning by Slurm's commands" tests/e2e/serve.sh tuning_slurm
beside "serve: requests with parts at random" tests/e2e/serve.sh bodies
beside "serve: what is kept between requests" tests/e2e/serve.sh state
beside "serve: start, keys, queue, end" tests/e2e/serve.sh life calls
beside "serve: every ending token, a model's own sampling" tests/e2e/serve.sh ends edges
beside "serve: a seed in generate, chat and serve" tests/e2e/serve.sh seeds
beside "serve: a hostile client and operator" tests/e2e/serve.sh abuse
beside "serve: memory, keys, hosts" tests/e2e/serve.sh safe
beside "bench serve" tests/e2e/serve.sh bench
beside "serve: pages in Chromium" tests/e2e/serve.sh pages
