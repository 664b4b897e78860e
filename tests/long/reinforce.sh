# make test learns to end answers within seconds; here a model is trained from nothing, fine-tuned, and learns to mark its answers by their rewards.
suite -t 3600 "reinforcement learning on made problems" python3 tests/e2e/reinforce_learns.py build/lateen
