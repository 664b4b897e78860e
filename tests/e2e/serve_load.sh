#!/usr/bin/env bash
# Load: many streams at once, of which a third of the clients disconnect at random. Nothing may leak, stall or disturb the others.
#   tests/e2e/serve_load.sh [SECONDS] [STREAMS]       default 600 1000; rounds of bench serve until the time is over
# Prints one line a round (what clients saw, the server's pages, memory, descriptors), then TAP.
set -u
cd "$(dirname "$0")/../.."
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# BENCH: the program that sends the requests, if another one serves.
lateen=${LATEEN:-build/lateen}
seconds=${1:-600} streams=${2:-1000}
shared=tests/golden/stories260k
dir=$(mktemp -d)
"$lateen" serve $shared/stories260K.bin --tokenizer $shared/tok512.bin --port 0 --quiet >"$dir/url" 2>"$dir/err" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 1200); do url=$(head -1 "$dir/url"); [ -n "$url" ] && curl -sf "$url/health" >/dev/null && break; sleep 0.05; done
stat() { curl -s "$url/status.json" | python3 -c "
import json, sys
s = json.load(sys.stdin)
print(*[s[k] for k in ('requests', 'running', 'pages_used', 'resident_bytes', 'descriptors', 'cancelled', 'failed', 'finished')])"; }
idle() { for _ in $(seq 600); do read -r requests running _ <<<"$(stat)"; [ "$requests" = 0 ] && [ "$running" = 0 ] && return 0; sleep 0.1; done; return 1; }
n=0 bad=0 round=0 first_rss=0
say() { n=$((n + 1)); if [ "$2" = 0 ]; then echo "ok $n - $1"; else echo "not ok $n - $1"; bad=1; fi; }
end=$((SECONDS + seconds)) lost=0 total=0
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    "${BENCH:-$lateen}" bench serve "$url" --requests $((2 * streams)) --concurrency "$streams" --prompt-tokens 24 --max-tokens 48 --drop 0.333 \
        --seed $round --timeout 300 --json >"$dir/round" 2>"$dir/log" || { cat "$dir/log"; bad=1; break; }
    idle || { echo "# requests are left over: $(stat)"; bad=1; }
    read -r requests running pages rss fds cancelled failed finished <<<"$(stat)"
    line=$(python3 -c "
import json
r = json.load(open('$dir/round'))
print(f\"{r['completed']} complete, {r['dropped']} dropped, {r['output_tokens_per_s']:.0f} tok/s, ttft p99 {r['ttft_s']['p99']:.2f} s, longest gap {r['itl_s']['max']:.2f} s\")
print(2 * $streams - r['completed'] - r['dropped'], r['first_failure'])")
    read -r n_lost why <<<"$(tail -1 <<<"$line")"
    lost=$((lost + n_lost))
    [ "$n_lost" = 0 ] || echo "# round $round: $n_lost lost: $why"
    echo "# round $round: $(head -1 <<<"$line"); pages $pages, resident $((rss >> 20)) MiB, descriptors $fds, cancelled $cancelled, failed $failed"
    [ $round -ne 2 ] || first_rss=$rss
    total=$((total + 2 * streams))
done
say "$round rounds, $total requests: the server lives" "$(kill -0 $server 2>/dev/null; echo $?)"
idle
say "nothing runs or waits" $?
read -r requests running pages rss fds cancelled failed finished <<<"$(stat)"
say "no page is held: $pages" $((pages != 0))
say "each request whose client stayed came to its end ($lost did not)" $((lost != 0))
say "no request failed: $failed" $((failed != 0))
say "clients that vanished were cancelled: $cancelled" $((cancelled == 0))
say "open descriptors: $fds" $((fds > 24))
[ -z "${BENCH:-}" ] || first_rss=0 # A sanitizer keeps freed memory.
say "memory: from $((first_rss >> 20)) to $((rss >> 20)) MiB since the second round" $((first_rss > 0 && rss > first_rss + (32 << 20)))
answer() { curl -s "$url/v1/completions" -d '{"prompt":"Once upon a time","max_tokens":30,"temperature":0}' | python3 -c "import json,sys; print(json.load(sys.stdin)['choices'][0]['text'])"; }
text=$(answer)
say "and it still answers: ${text:0:30}" "$(grep -q "little girl named Lily" <<<"$text"; echo $?)"
echo "1..$n"
exit $bad
