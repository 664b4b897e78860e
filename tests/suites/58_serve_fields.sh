# docs/serve-fields.md and the OpenAPI description match the tables by which requests are read. Sourced by tests/run.sh.
beside "fields of the server's requests in docs" bash -c '
    . tests/tap.sh
    build/lateen serve --describe fields | diff docs/serve-fields.md - >build/serve-fields.diff
    say "docs/serve-fields.md is what build/lateen serve --describe fields writes" $? "$(head -5 build/serve-fields.diff)"
    build/lateen serve --describe openapi >build/openapi.json
    say "--describe openapi" $?
    if command -v python3 >/dev/null; then
        python3 tests/e2e/openapi_refs.py build/openapi.json
        say "the OpenAPI description is JSON, names each operation once, and what it refers to is there" $?
    else
        skip "the OpenAPI description" "no python3"
    fi
    finish'
