# The figures of a plan against formulas of papers and data sheets, which the test computes.
beside "layouts of a recipe, and layout: auto" python3 tests/e2e/plan_layouts.py build/lateen
beside "planner's figures against formulas" python3 tests/e2e/plan_report.py build/lateen
