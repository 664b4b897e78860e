# make test trains some of the distillations beside TRL's losses; here all, with ranks and recomputation.
suite -t 1200 "distillation: every kind by TRL's losses" python3 tests/e2e/distill_truth.py build/lateen all
# make test trains six of the objectives over preferences beside TRL; here all of them, adapters and ranks included, and kills a run.
suite -t 1200 "preferences: every objective as TRL learns it" python3 tests/e2e/preference_truth.py build/lateen all
