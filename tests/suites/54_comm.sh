# shellcheck shell=bash
# Ranks on the command line: the verbs measured and checked between threads and between processes,
# and what is refused.
comm_programs() {
    . tests/tap.sh
    local dir
    dir=$(mktemp -d)
    measured() { # transport, ranks: six verbs of four sizes, each checked by the bench itself
        [ "$(grep -c "\"transport\": \"$1\", \"ranks\": $2" "$dir/out")" = 24 ] &&
            python3 -m json.tool <"$dir/out" >/dev/null
    }
    timeout 60 build/lateen bench comm --ranks 3 --max-bytes 64KiB --rounds 3 --json >"$dir/out" 2>"$dir/err"
    measured thread 3
    say "threads: every verb at every size" $? "$(cat "$dir/err")"
    if command -v mpirun >/dev/null; then
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 \
            mpirun --oversubscribe --bind-to none -n 2 build/lateen bench comm --max-bytes 64KiB --rounds 3 --json >"$dir/out" 2>"$dir/err"
        measured mpi 2
        say "processes: the same" $? "$(cat "$dir/err")"
    else
        skip "processes" "no mpirun"
    fi
    timeout 60 build/lateen launch --ranks 3 --plain bench comm --max-bytes 64KiB --rounds 3 --json >"$dir/out" 2>"$dir/err"
    measured shm 3
    say "processes that launch started: the same" $? "$(cat "$dir/err")"
    build/lateen launch --ranks 2 doctor --help 2>&1 | grep -q '^\[1\] usage: lateen doctor'
    say "any verb can be launched; lines name their rank" $?
    build/lateen launch --ranks 2 2>"$dir/err"
    [ $? = 2 ] && grep -q 'launch: no verb to start' "$dir/err"
    say "launch without a command is refused" $? "$(cat "$dir/err")"
    build/lateen launch train recipes/demo.yaml --retries=2 2>"$dir/err"
    [ $? = 2 ] && grep -q -- '^lateen: --retries is an option of launch and must stand before the verb' "$dir/err"
    say "an option of launch after train is refused" $? "$(cat "$dir/err")"
    build/lateen bench comm --ranks 1 --max-bytes 1KiB --rounds 1 2>"$dir/err" | grep -q '^all_reduce'
    say "one rank" $? "$(cat "$dir/err")"
    build/lateen bench comm --min-bytes 1MiB --max-bytes 1KiB 2>"$dir/err"
    [ $? = 2 ] && grep -q -- '--min-bytes 1048576 is more than --max-bytes 1024' "$dir/err"
    say "sizes that contradict are refused" $? "$(cat "$dir/err")"
    build/lateen comm blame "$dir" 2>"$dir/log"
    [ $? = 1 ] && grep -q 'no record of a rank (rank-N.jsonl)' "$dir/log"
    say "a folder without records is refused" $? "$(cat "$dir/log")"
    rm -rf "$dir"
    finish
}
export -f comm_programs
beside "ranks on the command line" bash -c comm_programs
beside "sites that train apart" python3 tests/e2e/diloco.py build/lateen
