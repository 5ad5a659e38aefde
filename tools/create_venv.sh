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

# How an interpreter was built decides up to half of the node's speed, so the quickest one at hand is
# taken. The work is what a node does most: calls, objects, attributes, dictionaries, bytes. Each
# candidate has several turns, between those of the others, and its best one counts: a machine that
# is busy for a moment must not choose.
slowness() {
    "$1" -c '
import time
class Made:
    __slots__ = ("name", "size")
    def __init__(self, name, size):
        self.name = name
        self.size = size
    def grown(self, by):
        return self.size + by
def work():
    seen = {}
    for number in range(20000):
        made = Made(number, 2)
        seen[number & 255] = {"made": made, "grown": made.grown(3)}
        b"%b %d" % (b"length", number)
def once():
    begun = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begun
print(min(once() for _ in range(4)) // 1000)' 2>/dev/null || echo 999999999
}

candidates=
for candidate in ${wanted:-python3.11 python3 /usr/bin/python3 python3.12 python3.13}; do
    if new_enough "$candidate"; then
        # Names that lead to one and the same interpreter are one candidate.
        real=$("$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))')
        case " $candidates " in
        *" $real "*) ;;
        *) candidates="$candidates $real" ;;
        esac
    fi
done
python=
best=
# With one candidate there is nothing to choose.
case "$candidates" in
" "*" "*) turns="1 2 3 4" ;;
*) turns="1" ;;
esac
for turn in $turns; do
    for candidate in $candidates; do
        took=$(slowness "$candidate")
        if [ -z "$python" ] || [ "$took" -lt "$best" ]; then
            python=$candidate
            best=$took
        fi
    done
done
if [ -z "$python" ]; then
    echo "Interlock needs Python 3.11 or newer${wanted:+, and $wanted is not}. On Debian 12 or newer: apt-get install python3 python3-venv" >&2
    exit 1
fi

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

version=$(version_of "$python")
if ! makes_venvs "$python"; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "· python $version has no venv module: installing it with apt-get"
        apt-get install -y -qq "python$version-venv" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq "python$version-venv"; } >/dev/null 2>&1 ||
            true
    fi
    if ! makes_venvs "$python"; then
        # Another one may be slower, but whole.
        for candidate in $candidates; do
            if makes_venvs "$candidate"; then
                python=$candidate
                version=$(version_of "$python")
                break
            fi
        done
    fi
    if ! makes_venvs "$python"; then
        echo "Python $version cannot create virtual environments. On Debian: apt-get install python$version-venv" >&2
        exit 1
    fi
fi

echo "· creating $folder with Python $version"
# Half an environment would pass for a whole one on the next run.
trap 'rm -rf "$folder"' INT TERM
"$python" -m venv "$folder" || { rm -rf "$folder"; exit 1; }
