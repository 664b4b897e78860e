# The Debian package: built by dpkg-buildpackage, lintian clean, and its program runs from where it is unpacked.
if ! command -v dpkg-buildpackage >/dev/null || ! command -v lintian >/dev/null; then
    skipped "Debian package" "needs dpkg-dev and lintian"
elif ! missing=$(dpkg-checkbuilddeps deploy/debian/control 2>&1); then
    skipped "Debian package" "${missing#*error: }"
else
    suite -t 3600 "Debian package" tests/e2e/package.sh
fi
