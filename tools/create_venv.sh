#!/bin/sh
# Creates the virtual environment that the Makefile works in: create_venv.sh FOLDER [PYTHON]
# Needs Python 3.11 or newer. On Debian the `venv` module lives in a package of its own; it is
# installed when this runs as root, otherwise the line to run is printed.
set -eu

folder=$1
wanted=${2:-}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# How an interpreter was built decides a third of the node's speed, so the quickest one at hand is
# taken. The work is a fixed amount, measured three times; the best counts.
slowness() {
    "$1" -c '
import time
def work():
    seen = {}
    for number in range(30000):
        seen[number & 255] = seen.get(number & 127, 0) + number
def once():
    begun = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begun
print(min(once() for _ in range(3)) // 1000)' 2>/dev/null || echo 999999999
}

python=
best=
for candidate in ${wanted:-python3.11 python3 /usr/bin/python3 python3.12 python3.13}; do
    if new_enough "$candidate"; then
        took=$(slowness "$candidate")
        # A little faster is noise; the first in the list stays.
        if [ -z "$python" ] || [ $((took * 5)) -lt $((best * 4)) ]; then
            python=$candidate
            best=$took
        fi
    fi
done
if [ -z "$python" ]; then
    echo "Interlock needs Python 3.11 or newer${wanted:+, and $wanted is not}. On Debian 12 or newer: apt-get install python3 python3-venv" >&2
    exit 1
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "· python $version has no venv module: installing it with apt-get"
        apt-get install -y -qq "python$version-venv" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq "python$version-venv"; } >/dev/null 2>&1 ||
            true
    fi
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        echo "Python $version cannot create virtual environments. On Debian: apt-get install python$version-venv" >&2
        exit 1
    fi
fi

echo "· creating $folder with Python $version"
# Half an environment would pass for a whole one on the next run.
trap 'rm -rf "$folder"' INT TERM
"$python" -m venv "$folder" || { rm -rf "$folder"; exit 1; }
