# The tables and figures of docs/kernels.md and docs/performance.md match bench/results. Sourced by tests/run.sh.
if command -v python3 >/dev/null; then
    beside "measured figures in docs" bash -c '
        if out=$(python3 tools/make_kernel_docs.py --check 2>&1); then
            echo "ok 1 - docs/kernels.md"
        else
            echo "not ok 1 - docs/kernels.md: run tools/make_kernel_docs.py, look at what changed"
            echo "$out" | sed "s/^/# /"
        fi
        if out=$(python3 tools/make_performance.py --check 2>&1); then
            echo "ok 2 - docs/performance.md"
        else
            echo "not ok 2 - $out"
        fi
        echo 1..2'
else
    skipped "measured figures in docs" "no python3"
fi
