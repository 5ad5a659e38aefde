#!/bin/sh
# Installs the LLM frameworks that some tests run as clients of a node, into an environment of their
# own: install_frameworks.sh FOLDER PYTHON REQUIREMENTS. They are about 300 MB and take a minute, once:
# as long as the requirements stay the same, nothing is done. Never fails: where they cannot be had,
# those tests skip, and say so.
set -u

folder=$1
python=$2
requirements=$3

cmp -s "$requirements" "$folder/.ready" && exit 0
echo "· installing LLM frameworks into $folder (a minute, the first time)"
rm -rf "$folder"
if "$python" -m venv "$folder" >/dev/null 2>&1 &&
    timeout 300 "$folder/bin/python" -m pip install --quiet --quiet --no-deps --no-compile \
        --requirement "$requirements" >/dev/null 2>&1; then
    cp "$requirements" "$folder/.ready"
else
    rm -rf "$folder"
    echo "· the LLM frameworks could not be installed; tests that need them skip"
fi
exit 0
