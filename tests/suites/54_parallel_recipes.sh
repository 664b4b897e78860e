# Recipes for many GPUs agree with their Slurm scripts and with the planner. Sourced by tests/run.sh.
beside "recipes for many GPUs" tests/e2e/parallel_recipes.sh
