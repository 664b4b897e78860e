# The runner itself: a program that stops early is a failure, whatever its exit status. A skipped test is reported, and does not count as passed.
runner_itself() {
    local dir last
    dir=$(mktemp -d)
    . tests/tap.sh
    unset DEADLINE_FACTOR
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
    # c waits for a file of suite b, and a for one of c, so neither may wait for b to end. d waits
    # until one of the two has ended.
    says "what sleeps runs beside what runs by itself, two at once" "$(printf 'go() { until [ -e "%s/$1" ]; do sleep 0.05; done; }; said() { touch "%s/$1"; echo ok 1; echo 1..1; }; export -f go said
        waits -t 60 a bash -c "go c; said a"; waits -t 60 c bash -c "go b; ! [ -e %s/d ] && said c"; waits -t 60 d bash -c "said d"; suite -t 60 b bash -c "said b"' "$dir" "$dir" "$dir")" "4 passed, 0 failed"
    says "a suite by itself begins when all before it have ended, and those after it when it has" "$(printf 'beside a bash -c "sleep 0.5; touch %s/e; echo ok 1; echo 1..1"; suite b bash -c "[ -e %s/e ] && sleep 0.5 && touch %s/f; echo ok 1; echo 1..1"; beside c bash -c "[ -e %s/f ] && echo ok 1; echo 1..1"' "$dir" "$dir" "$dir" "$dir")" "3 passed, 0 failed"
    # The first one waits until all of them run, and checks that the next one does not; the others
    # wait for the first.
    local n_beside=$(($(nproc) + 1)) i suites=''
    for ((i = 1; i <= n_beside; i++)); do
        suites+="beside -t 60 n$i bash -c 'touch $dir/n$i; go() { for _ in {1..500}; do \$1 && return; sleep 0.05; done; false; }; all() { [ \$(ls $dir/n* | wc -l) = $n_beside ]; }; checked() { [ -e $dir/checked ]; }
            if [ $i = 1 ]; then go all && sleep 0.3 && all && touch $dir/checked; fi; go checked && echo ok 1; echo 1..1'"$'\n'
    done
    says "one more than there are cores run beside each other, and no other" "${suites}beside -t 60 more bash -c 'touch $dir/n; echo ok 1; echo 1..1'" "$((n_beside + 1)) passed, 0 failed"
    says "killed" 'suite a bash -c "echo ok 1; kill -9 \$\$"' "1 passed, 1 failed"
    says "another script's results: its plan is kept" 'suite a bash -c ". tests/tap.sh; within printf \"ok 1\n1..1\n\"; say b 0; finish"' "2 passed, 0 failed"
    says "another script's results: it stops early" 'suite a bash -c ". tests/tap.sh; within printf \"1..2\nok 1\n\"; say b 0; finish"' "2 passed, 1 failed"
    says "failures are named once more before the last line" 'suite a printf "ok 1\n# not of a failure\nnot ok 2 - the name\n# what it says\nnot ok 3 # SKIP c\n1..3\n"; suite b printf "1..1\nok 1\n"' "2 passed, 1 failed, 1 skipped"
    [ "$(sed -n '/^failed:/,/ in all/p' "$dir/log" | sed -n '2,4p' | paste -sd:)" = "    a:        not ok 2 - the name:        # what it says" ] && [ "$(grep -c "not of a failure" <(sed -n '/^failed:/,/ in all/p' "$dir/log"))" = 0 ]
    say "they alone, with what their programs say of them" $? "$(cat "$dir/log")"
    tests/run.sh "$dir" >/dev/null 2>&1
    say "a failure is the runner's status" $(($? != 1))
    local hang=987.$$ # A number of seconds that no other run beside this one uses.
    # A child in a session of its own, which ignores TERM, is killed too; the output so far is shown, and the next suite runs.
    says "a suite that hangs, and its children" 'beside -t 4 "the slow one" bash -c "echo ok 1; echo so far; setsid sh -c \"trap : TERM; while :; do sleep '$hang'; done\" & sleep '$hang'"; suite b printf "ok 1\n1..1\n"' "2 passed, 1 failed"
    grep -qE '^the slow one .* 1 failed .* [0-9]+ s' "$dir/log" && grep -q '    so far' "$dir/log" && grep -q "the slow one missed its deadline of 4 s" "$dir/log" && ! pgrep -f "sleep $hang" >/dev/null
    say "it is named, with time and last lines; nothing of it is left" $? "$(cat "$dir/log")"
    DEADLINE_FACTOR=30 says "deadlines with a factor" 'suite -t 1 a bash -c "sleep 1.5; echo ok 1; echo 1..1"' "1 passed, 0 failed"
    DEADLINE_FACTOR=0.5 says "a factor that is none" 'suite a true' "tests/run.sh: DEADLINE_FACTOR '0.5' is not a whole number from 1"
    says "the slowest ten, the slowest first" 'for i in 1 2 3 4 5 6 7 8 9 10 11; do suite n$i printf "ok 1\n# end\n"; done; suite long bash -c "sleep 1.1; echo ok 1; echo \"# end\""' "12 passed, 0 failed"
    [ "$(sed -n '/^the slowest/,/ in all/p' "$dir/log" | sed -n '2p;$=' | tr -s ' ' | sed -E 's/^ [0-9]+ s /S s /' | paste -sd:)" = "S s long:12" ]
    say "slowest: ten lines" $? "$(cat "$dir/log")"
    says "the most CPU time first, whoever is slower" 'suite long bash -c "sleep 1; echo ok 1; echo \"# end\""; suite busy bash -c "for i in {1..30000}; do :; done; echo ok 1; echo \"# end\""' "2 passed, 0 failed"
    [ "$(sed -n '/^the most CPU/,/^the slowest/p' "$dir/log" | sed -n '2p' | tr -s ' ')" = " 0 s busy" ]
    say "the most CPU time: the busy one" $? "$(cat "$dir/log")"
    echo "suite a sleep $hang" >"$dir/1.sh"
    tests/run.sh "$dir" >/dev/null 2>&1 &
    for _ in $(seq 100); do pgrep -f "sleep $hang" >/dev/null && break; sleep 0.1; done
    kill $! && wait $!
    say "stopped by a signal: 143, and its suites with it" "$([ $? = 143 ] && ! pgrep -f "sleep $hang" >/dev/null; echo $?)"
    tests/run.sh "$dir/none" >/dev/null 2>&1
    say "no such folder: usage" $(($? != 2))
    rm -rf "$dir"
    finish
}
export -f runner_itself
waits "the runner itself" bash -c runner_itself
