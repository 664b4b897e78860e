# Include order, formatting, and the like.
beside "lint" tests/lint.sh
