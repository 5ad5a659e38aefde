#!/bin/sh
# Installs the programs that some tests and benchmarks use as real peers and that pip does not
# carry: nginx, node with npm, and a browser with its driver. Only what is missing, only as root
# with apt-get. Never fails: a test whose peer is absent skips, and says so.
set -u

missing=
command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || missing="$missing nginx-light"
command -v node >/dev/null 2>&1 || missing="$missing nodejs"
command -v npm >/dev/null 2>&1 || missing="$missing npm"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v chromedriver >/dev/null 2>&1 || missing="$missing chromium-driver"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "· not installed, tests that need them skip:$missing"
    exit 0
fi

echo "· installing with apt-get:$missing"
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq >/dev/null 2>&1
for package in $missing; do
    timeout 240 apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 ||
        echo "· $package could not be installed; tests that need it skip"
done
exit 0
