#!/bin/sh
# Targets of Prometheus (file_sd) from Slurm: targets.sh [FOLDER]. Writes FOLDER/nodes.json, every node that Slurm knows, at port LATEEN_NODE_PORT
# (9401), and FOLDER/runs.json, the first node of every running job whose comment holds lateen-metrics=PORT. A file is replaced whole, and only if Slurm
# has answered: when its controller is away, Prometheus keeps the targets that it has.
set -eu
folder=${1:-/var/lib/lateen/targets}
port=${LATEEN_NODE_PORT:-9401}
mkdir -p "$folder"
json='
function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); gsub(/[\001-\037]/, " ", s); return "\"" s "\"" }
BEGIN { printf "[" }
END { print n ? "\n]" : "]" }'
replace() { # NAME: standard input becomes FOLDER/NAME
    cat >"$folder/.$1.new"
    mv "$folder/.$1.new" "$folder/$1"
}
nodes=$(sinfo --noheader --Node --format '%N|%R')
runs=$(squeue --noheader --states RUNNING --format '%A|%B|%a|%u|%k')
# A node of several partitions has a line of each; the first counts.
printf '%s\n' "$nodes" | awk -F'|' -v port="$port" "$json"'
NF >= 2 && !seen[$1]++ {
    printf "%s\n {\"targets\": [%s], \"labels\": {\"node\": %s, \"partition\": %s}}", n++ ? "," : "", quoted($1 ":" port), quoted($1), quoted($2) }' | replace nodes.json
printf '%s\n' "$runs" | awk -F'|' "$json"'
match($0, /lateen-metrics=[0-9]+/) {
    at = substr($0, RSTART + 15, RLENGTH - 15)
    printf "%s\n {\"targets\": [%s], \"labels\": {\"job_id\": %s, \"node\": %s, \"tenant\": %s, \"user\": %s}}", n++ ? "," : "", quoted($2 ":" at), quoted($1), quoted($2), quoted($3), quoted($4) }' | replace runs.json
