"""Counts tokens as the o200k models do, with npm's ``gpt-tokenizer``: real ranks, nothing guessed.

Installed once into the user's cache, as the other peers from npm are; where that cannot be, the
benchmark says so and is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.processes import TargetFailure
from bench.targets import TargetMissing

VERSION = "4.0.0"
_COUNT = """\
import { countTokens } from 'gpt-tokenizer/encoding/o200k_base';
const parts = [];
for await (const part of process.stdin) parts.push(part);
const texts = JSON.parse(Buffer.concat(parts).toString('utf8'));
const options = { disallowedSpecial: new Set() };
console.log(JSON.stringify(texts.map((text) => countTokens(text, options))));
"""


def installed() -> Path:
    """The folder from which the tokenizer can be imported."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise TargetMissing("npm and node are not installed: tokens cannot be counted")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "interlock-bench" / f"gpt-tokenizer-{VERSION}"
    if not (folder / "node_modules" / "gpt-tokenizer" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(
            [*install, "--prefix", str(folder), f"gpt-tokenizer@{VERSION}"],
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode != 0:
            raise TargetMissing(f"npm could not install gpt-tokenizer: {done.stderr[-300:]}")
    (folder / "count.mjs").write_text(_COUNT)
    return folder


def count_tokens(texts: Sequence[str]) -> list[int]:
    """How many tokens each text has."""
    done = subprocess.run(
        ["node", "count.mjs"],
        cwd=installed(),
        input=msgspec.json.encode(list(texts)),
        capture_output=True,
        timeout=180,
    )
    if done.returncode != 0:
        raise TargetFailure(f"gpt-tokenizer failed: {done.stderr[-300:]!r}")
    return msgspec.json.decode(done.stdout, type=list[int])
