#!/usr/bin/env bash
# The Debian package: tools/make_deb.sh builds it and lintian finds no fault; when unpacked, the
# program runs, and units, scripts and recipes are there. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
. tests/tap.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/make_deb.sh "$work/deb" >"$work/log" 2>&1
say "dpkg-buildpackage builds it, and lintian finds nothing" $? "$(tail -n 3 "$work/log" | tr '\n' ' ')"
dpkg-deb -x "$work"/deb/lateen_*.deb "$work/tree" 2>"$work/log"
say "it unpacks" $? "$(tail -n 1 "$work/log")"
[ "$("$work/tree/usr/bin/lateen" --version 2>&1 | head -n 1)" = "$(build/lateen --version | head -n 1)" ]
say "its program runs" $? "$("$work/tree/usr/bin/lateen" --version 2>&1)"
for file in usr/share/lateen/deploy/slurm/prolog.sh usr/share/lateen/deploy/prometheus/prometheus.yml usr/share/lateen/deploy/kubernetes/train.yaml usr/share/lateen/recipes/policy.yaml \
    lib/systemd/system/lateen-health.service lib/systemd/system/lateen-serve.service; do
    [ -f "$work/tree/$file" ]
    say "it has $file" $?
done
"$work/tree/usr/bin/lateen" cluster policy "$work/tree/usr/share/lateen/recipes/policy.yaml" --check >"$work/log" 2>&1
say "and reads its recipes" $? "$(tail -n 1 "$work/log")"
finish
