# Frameworks for agents in their current versions, against the server. They are installed here if they are missing.
venv() { # folder, packages...
    local folder=build/$1
    shift
    [ -x "$folder/bin/pip" ] || python3 -m venv "$folder"
    "$folder/bin/pip" -q install "$@" || echo "# $folder: not all of $* can be installed; their tests are skipped"
}
# Frameworks that pin different versions of the same clients need separate environments.
venv venv openai anthropic ollama
venv venv-agents openai-agents instructor
venv venv-litellm dspy litellm mcp orjson
venv venv-chains langchain-openai langchain-ollama "pydantic-ai-slim[openai,anthropic]" llama-index-llms-openai-like
suite -t 900 "serve: agents' frameworks, all of them" tests/e2e/serve.sh agents
