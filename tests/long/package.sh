# The Debian package: built by dpkg-buildpackage, lintian clean, and its program runs from where it is unpacked.
if command -v dpkg-buildpackage >/dev/null && command -v lintian >/dev/null; then
    suite -t 3600 "Debian package" tests/e2e/package.sh
else
    skipped "Debian package" "needs dpkg-dev, debhelper and lintian"
fi
