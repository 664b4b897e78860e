# The figures of a plan against formulas of papers and data sheets, which the test computes.
beside "planner's figures against formulas" python3 tests/e2e/plan_report.py build/lateen
