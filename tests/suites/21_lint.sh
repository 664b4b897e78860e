# Include order, formatting, and the like: half a minute of one core, beside the ops, so that it is not left over at the end.
beside "lint" tests/lint.sh
