# Limits for the strength of a selection, against the same sums in Python. Sourced by
# tests/run.sh.
if command -v python3 >/dev/null; then
    beside "align hedge" python3 tests/e2e/align_hedge.py
    beside "reinforcement learning" python3 tests/e2e/reinforce.py build/lateen
    beside "align rewards, reward models" python3 tests/e2e/align_rewards.py build/lateen
    beside "eval: tasks answered with a text" python3 tests/e2e/eval_generative.py build/lateen tests/golden/stories260k/stories260K.bin tests/golden/stories260k/tok512.bin
    beside "alignment in generate and eval" python3 tests/e2e/align_verbs.py build/lateen
    beside "align experiment" python3 tests/e2e/align_experiment.py build/lateen tests/golden/stories260k/stories260K.bin tests/golden/stories260k/tok512.bin
else
    skipped "align hedge" "no python3"
fi
