# Include order, formatting, and the like.
suite "lint" tests/lint.sh
