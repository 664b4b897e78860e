# The worked examples of docs/plan still print what the pages show. Sourced by tests/run.sh.
beside "planner's worked examples" bash -c '
    if out=$(tools/plan_docs.sh --check 2>&1); then
        echo "ok 1 - docs/plan"
    else
        echo "not ok 1 - docs/plan: run tools/plan_docs.sh, look at what changed"
        echo "$out" | sed "s/^/# /"
    fi
    echo 1..1'
