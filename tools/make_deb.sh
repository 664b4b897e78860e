#!/usr/bin/env bash
# Make a Debian package of this commit: tools/make_deb.sh [FOLDER]. It builds in a copy with dpkg-buildpackage, and leaves lateen_VERSION_ARCH.deb in FOLDER
# (default: build/deb). lintian must find nothing. Needs build-essential, debhelper, lintian and packages.txt.
set -eu
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/deb}")
source=$folder/lateen-$(cat VERSION)
rm -rf "$folder"
mkdir -p "$source"
git archive HEAD | tar -x -C "$source"
cp -r deploy/debian "$source/debian"
(cd "$source" && dpkg-buildpackage -us -uc -b)
rm -rf "$source"
rm -f "$folder"/*-dbgsym_*.deb
lintian --fail-on error,warning "$folder"/lateen_*.deb
ls "$folder"/lateen_*.deb
