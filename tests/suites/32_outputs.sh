# Output never overwrites an input, nor a device. Sourced by tests/run.sh.
if command -v python3 >/dev/null; then
    beside "outputs spare inputs" python3 tests/e2e/outputs.py build/lateen
else
    skipped "outputs spare inputs" "no python3"
fi
