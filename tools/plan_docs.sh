#!/usr/bin/env bash
# Run every "$ lateen ..." in a code block of docs/plan, and write its output below it.
#   tools/plan_docs.sh           rewrite the pages
#   tools/plan_docs.sh --check   only list the pages that would change (exit 1)
set -eu
cd "$(dirname "$0")/.."
status=0
for page in docs/plan/*.md; do
    case $page in */README.md | */validation.md) continue ;; esac
    new=$(mktemp)
    in_block=0 in_output=0
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        '```'*)
            in_block=$((1 - in_block))
            in_output=0
            printf '%s\n' "$line"
            ;;
        '$ lateen '*)
            [ "$in_block" = 1 ] || { printf '%s\n' "$line"; continue; }
            printf '%s\n' "$line"
            # The duration of a search would change the page with every run.
            eval "build/lateen ${line#\$ lateen }" 2>&1 </dev/null | sed -E 's/ tried in [0-9.]+ s,/ tried,/' || true
            in_output=1
            ;;
        *) [ "$in_output" = 1 ] || printf '%s\n' "$line" ;;
        esac
    done <"$page" >"$new"
    if ! cmp -s "$page" "$new"; then
        echo "$page: $(diff "$page" "$new" | grep -c '^[<>]') lines differ"
        status=1
        [ "${1:-}" = --check ] || cp "$new" "$page"
    fi
    rm -f "$new"
done
[ "${1:-}" = --check ] && exit $status || exit 0
