# The documentation: links of all *.md, the names and outputs in them, and the site that `make
# docs` writes. Sourced by tests/run.sh.
if command -v python3 >/dev/null; then
    beside "links of the documentation" bash -c '
        broken=$(mktemp -d) || exit 1
        trap "rm -rf $broken" EXIT
        if out=$(python3 tools/check_links.py 2>&1); then echo "ok 1 - $out"; else echo "not ok 1 - broken links"; echo "$out" | sed "s/^/# /"; fi
        # The check finds a broken file and a broken anchor, and ignores code.
        printf "# A b\n\n[good](#a-b) [bad](#c) [gone](none.md) \`[code](none.md)\`\n\n    [code](none.md)\n" >"$broken/page.md"
        found=$(python3 -c "
import sys
sys.path.insert(0, \"tools\")
import check_links
print(len(check_links.check_sources([sys.argv[1]])))" "$broken/page.md")
        [ "$found" = 2 ] && echo "ok 2 - two broken links of five are found" || echo "not ok 2 - $found broken links found, not 2"
        echo 1..2'
    beside "the table of mutations counts its rows" bash -c '
        if out=$(python3 tools/make_mutation_table.py --check 2>&1); then echo "ok 1 - tests/mutation.md"; else echo "not ok 1 - $out"; fi
        echo 1..1'
    beside "commands of the documentation" bash -c '
        page=$(mktemp) || exit 1
        trap "rm -f $page" EXIT
        if out=$(python3 tools/check_commands.py build/lateen 2>&1); then echo "ok 1 - $out"; else echo "not ok 1 - names that are not there"; echo "$out" | sed "s/^/# /"; fi
        # The check finds each kind of fault, and lets what is right pass.
        cat >"$page" <<PAGE
    build/lateen trian recipes/demo.yaml
    lateen launch --ranks 2 train recipes/demo.yaml --stepz 3 --out runs/a      two ranks
    lateen launch --rankz 2 train recipes/demo.yaml --out runs/b
    lateen plan serve --model x --kv fp9
    lateen train --out runs/c --steps 3
    lateen train --out runs/c --steps 4
    lateen train --out runs/c --model.width 64
    lateen train recipes/none.yaml --out runs/d --no-verify --trace-step 3
    make nosuch
    lateen data check x.jsonl --k 1

\`--nosuch\`, \`--steps\`, \`lr.warmdown\`, \`lr.warmup: 3\`, \`lt_no_such_name\`, \`lt_error_set\`, \`LATEEN_NO_SUCH\`, \`tools/none.py\`, \`tools/run.sh\`
PAGE
        found=$(python3 tools/check_commands.py build/lateen "$page" | sed "s/.*:\([0-9]*\): /\1 /" | cut -c1-40)
        want="1 there is no verb trian
2 lateen train has no option --stepz
3 lateen launch has no option --rankz
4 --kv of lateen plan cannot be fp9, only 
7 trains into runs/c as $page:5 does, with
8 there is no recipes/none.yaml
9 the Makefile has no target nosuch
12 no verb and no script has an option --n
12 lateen train has no option lr.warmdown
12 no source has lt_no_such_name
12 no source has LATEEN_NO_SUCH
12 there is no tools/none.py"
        want=$(cut -c1-40 <<<"$want")
        [ "$found" = "$want" ] && echo "ok 2 - twelve faults of a page are found" || { echo "not ok 2 - faults of a page"; diff <(echo "$want") <(echo "$found") | sed "s/^/# /"; }
        echo 1..2'
    beside "trainings that pages print" python3 tests/e2e/printed_trainings.py build/lateen
    if command -v mkdocs >/dev/null; then
        beside "documentation as a site" bash -c '
            if out=$(make -s docs SITE=build/test-site 2>&1); then echo "ok 1 - $out"; else echo "not ok 1 - make docs"; echo "$out" | sed "s/^/# /"; fi
            echo 1..1'
    else
        skipped "documentation as a site" "no mkdocs"
    fi
else
    skipped "links of the documentation" "no python3"
fi
