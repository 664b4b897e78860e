# The runner itself: whatever stops early, whatever its exit status, is a failure; what is skipped is said and is not counted as passed.
runner_itself() {
    local dir last
    dir=$(mktemp -d)
    . tests/tap.sh
    says() { # name, lines of suites, the closing line
        rm -f "$dir"/*.sh
        printf '%s\n' "$2" >"$dir/1.sh"
        last=$(tests/run.sh "$dir" 2>&1 | tee "$dir/log" | tail -n 1)
        say "$1" "$([ "$last" = "$3" ]; echo $?)" "$last, not $3"
    }
    says "a plan that is kept, first or last" 'suite a printf "1..2\nok 1\nok 2\n"; beside b printf "ok 1 - x\n1..1\n"' "3 passed, 0 failed"
    says "an end mark" 'suite a printf "ok - x\nok - y\n# end\n"' "2 passed, 0 failed"
    says "status 0 before the plan is kept" 'suite a printf "1..3\nok 1\nok 2\n"' "2 passed, 1 failed"
    says "status 0 without a plan" 'suite a printf "ok 1\nok 2\n"' "2 passed, 1 failed"
    says "more results than planned" 'suite a printf "1..1\nok 1\nok 2\n"' "2 passed, 1 failed"
    says "an end mark that is not the end" 'suite a printf "ok 1\n# end\nok 2\n"' "2 passed, 1 failed"
    says "two plans: whose is it" 'suite a printf "1..1\nok 1\n1..1\nok 1\n"' "2 passed, 1 failed"
    says "nothing at all" 'suite a true; suite b echo 1..0' "0 passed, 2 failed"
    says "a failing status without a failed test" 'suite a bash -c "echo ok 1; echo 1..1; exit 3"' "1 passed, 1 failed"
    says "a failed test is one failure" 'suite a bash -c "echo not ok 1; echo ok 2; echo 1..2; exit 1"' "1 passed, 1 failed"
    says "a failed test beside which the rest is missing" 'suite a printf "1..3\nnot ok 1\n"' "0 passed, 1 failed"
    says "skipped tests, as scripts and as cmocka say it" 'skipped a "no gadget"; suite b printf "1..2\nok 1\nnot ok 2 # SKIP some_test\n"' "1 passed, 0 failed, 2 skipped"
    says "killed" 'suite a bash -c "echo ok 1; kill -9 \$\$"' "1 passed, 1 failed"
    says "another script's results: its plan is kept" 'suite a bash -c ". tests/tap.sh; within printf \"ok 1\n1..1\n\"; say b 0; finish"' "2 passed, 0 failed"
    says "another script's results: it stops early" 'suite a bash -c ". tests/tap.sh; within printf \"1..2\nok 1\n\"; say b 0; finish"' "2 passed, 1 failed"
    tests/run.sh "$dir" >/dev/null 2>&1
    say "a failure is the runner's status" $(($? != 1))
    tests/run.sh "$dir/none" >/dev/null 2>&1
    say "no such folder: usage" $(($? != 2))
    rm -rf "$dir"
    finish
}
export -f runner_itself
suite "the runner itself" bash -c runner_itself
