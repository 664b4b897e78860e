# Generated problems: answers and steps against a second computation, splits, ranges. Sourced by
# tests/run.sh.
if command -v python3 >/dev/null; then
    beside "data make" python3 tests/e2e/data_make.py
else
    skipped "data make" "no python3"
fi
