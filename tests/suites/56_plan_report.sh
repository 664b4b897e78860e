# The figures of a plan against formulas of papers and data sheets, which the test computes
# itself.
beside "layouts of a recipe, and layout: auto" python3 tests/e2e/plan_layouts.py build/lateen
beside "planner's figures against formulas" python3 tests/e2e/plan_report.py build/lateen
# The predicted cost of a fault, drawn from half of the recorded recoveries, against the other
# half.
beside "measured recoveries in the simulation" python3 tests/e2e/simulate_faults.py build/lateen
