# The figures of a plan against formulas of papers and data sheets, which the test computes.
beside "layouts of a recipe, and layout: auto" python3 tests/e2e/plan_layouts.py build/lateen
beside "planner's figures against formulas" python3 tests/e2e/plan_report.py build/lateen
# What a fault costs, drawn from half of the recoveries that were recorded, against the other half.
beside "measured recoveries in the simulation" python3 tests/e2e/simulate_faults.py build/lateen
