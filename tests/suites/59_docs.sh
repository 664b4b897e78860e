# The documentation: links of all *.md, and those of the site that `make docs` writes. Sourced by tests/run.sh.
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
