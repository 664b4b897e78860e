# The tables and figures of docs/kernels.md are those of bench/results. Sourced by tests/run.sh.
if command -v python3 >/dev/null; then
    beside "measured GPU kernels in docs" bash -c '
        if out=$(python3 tools/make_kernel_docs.py --check 2>&1); then
            echo "ok 1 - docs/kernels.md"
        else
            echo "not ok 1 - docs/kernels.md: run tools/make_kernel_docs.py, look at what changed"
            echo "$out" | sed "s/^/# /"
        fi
        echo 1..1'
else
    skipped "measured GPU kernels in docs" "no python3"
fi
