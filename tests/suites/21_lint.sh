# Include order, formatting, and the like. It takes half a minute of one core, and runs beside the ops so that it does not end last.
beside "lint" tests/lint.sh
