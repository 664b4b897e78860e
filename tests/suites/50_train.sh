# Training as users run it: killed at any instant and resumed, stopped by signals, given invalid input.
beside "kill -9 and resume" python3 tests/e2e/kill_resume.py build/lateen
beside "train: signals, bad input" tests/e2e/train.sh
beside "memory: peak against what was announced" tests/e2e/memory.sh
beside "memory: plan announces what training announces" tests/e2e/plan_own.sh
beside "truth: every family begins as its kept curve" tests/e2e/truth.sh
beside "train: as PyTorch trains" python3 tests/e2e/train_truth.py build/lateen
beside "train: conversations, as transformers and PyTorch have them" python3 tests/e2e/sft_truth.py build/lateen
beside "train: preferences, as TRL learns them" python3 tests/e2e/preference_truth.py build/lateen
beside "train: distillation, by TRL's losses" python3 tests/e2e/distill_truth.py build/lateen
beside "train: when it does what" python3 tests/e2e/train_decides.py build/lateen
beside "train: stages one behind the other" python3 tests/e2e/stages.py build/lateen
beside "train: several adapters at once" python3 tests/e2e/train_adapters.py build/lateen
beside "train: a mesh timed beside one rank" python3 tests/e2e/bench_mesh.py build/lateen
beside "train: checkpoints behind the run" python3 tests/e2e/train_async.py build/lateen
beside "train: times of each rank, traces" python3 tests/e2e/train_times.py build/lateen
