"""Version ranges as in npm, compared with npm where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.ranges import check_range, in_range, newest
from tests.support.timeouts import HANG_TIMEOUT


@pytest.mark.spec("DR-30.implements-8")
@pytest.mark.parametrize(
    ("version", "text", "fits"),
    [
        ("1.4.2", "^1.0", True),
        ("2.0.0", "^1.0", False),
        ("1.1.0-beta", "^1.0.0", False),
        ("1.0.0-beta.2", "^1.0.0-beta.1", True),
        ("1.0.1-beta", "^1.0.0-beta.1", False),
        ("1.2.9", "~1.2.3", True),
        ("1.3.0", "~1.2.3", False),
        ("1.2.0", "~1.2.0-beta", True),
        ("1.2.5", "~1.2.0-beta", True),
        ("1.9.9", "1.x", True),
        ("2.0.0", "1.x", False),
        ("1.2.9", "1.2.*", True),
        ("1.2.9", "1.2", True),
        ("7.0.0", "*", True),
        ("7.0.0-rc.1", "*", False),
        ("7.0.0", "", True),
        ("2.3.4", "1.2 - 2.3", True),
        ("2.4.0", "1.2 - 2.3", False),
        ("1.2.3", "1.2.3 - 2.3.4", True),
        ("2.3.5", "1.2.3 - 2.3.4", False),
        ("3.1.0", "^1 || ^3", True),
        ("2.1.0", "^1 || ^3", False),
        ("2.50.0", ">=2.40 <3", True),
        ("3.0.0", ">=2.40 <3", False),
        ("2.50.0", ">= 2.40  < 3", True),
        ("0.5.1", ">=0.5", True),
        ("0.0.4", "^0.0.3", False),
        ("0.2.9", "^0.2.3", True),
        ("0.3.0", "^0.2.3", False),
        ("1.2.3", "=v1.2.3", True),
        ("1.2.3+build.5", "1.2.3", True),
        ("1.2.3", "1.2.3+build.5", True),
        ("1.2.3", ">=1.2.3-alpha <1.2.3", False),
        ("1.2.3-beta", ">=1.2.3-alpha <1.2.3", True),
        ("2.0.0-beta", "^1.2.3", False),
        ("1.5.0", "~>1.4", False),
        ("1.4.9", "~>1.4", True),
    ],
)
def test_compares_version_with_range(version: str, text: str, fits: bool) -> None:
    assert in_range(version, text) is fits


@pytest.mark.parametrize(
    "text",
    ["^^1", "latest", ">=", "1.2.3.4", "1 - ", "a || b", "^1.0.0 && 2", "1.x.beta", "x" * 300],
)
def test_rejects_invalid_range(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_range(text)
    assert "npm" in caught.value.hint
    with pytest.raises(InvalidValueError):
        in_range("1.0.0", text)


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "", "1.0.0.0", "01.0.0"])
def test_rejects_invalid_version(version: str) -> None:
    with pytest.raises(InvalidValueError):
        in_range(version, "*")


def test_newest_orders_versions() -> None:
    assert newest(["1.9.0", "1.10.0", "1.10.0-rc.1", "1.2.0"]) == "1.10.0"


@given(st.text(alphabet="0123456789.xX*^~<>=- |v+abc", max_size=25), st.integers(0, 3))
def test_reads_or_rejects_any_range(text: str, major: int) -> None:
    try:
        check_range(text)
    except InvalidValueError:
        return
    assert in_range(f"{major}.2.3", text) in (True, False)


_RANGES = [
    *(f"{sign}{version}" for sign, version in product(
        ("", "^", "~", ">", ">=", "<", "<=", "="),
        ("0", "1", "0.1", "1.2", "0.0.3", "0.2.3", "1.2.3", "1.2.0-beta", "1.2.3-beta.2",
         "1.x", "1.2.x"),
    )),
    "*", "x", "", "1.2 - 1.3", "1.2.3 - 2", "0.1.0 - 1.2.3-beta.3", "^1.2.3 || ~0.2.1",
    ">=1.2.3-beta.1 <1.2.3", ">=1.2.3-alpha <2.0.0-0", ">1.2.3-beta.1 <=1.3", "~1.2.3 >1.2.4",
    ">= 1.2.3", "~> 1.2", "v1.2.3", ">=v1.2.3 || 0.x",
]  # fmt: skip
_VERSIONS = [
    f"{core}{suffix}"
    for core, suffix in product(
        ("0.0.0", "0.0.3", "0.0.4", "0.1.0", "0.2.3", "0.2.9", "1.0.0", "1.2.0", "1.2.3", "1.2.4",
         "1.3.0", "2.0.0", "3.1.4"),
        ("", "-0", "-alpha", "-beta.1", "-beta.2", "-beta.10", "-rc", "+build"),
    )
]  # fmt: skip


def npm_semver() -> str:
    """Return the folder of npm's implementation."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    real = Path(os.path.realpath(npm))
    for folder in real.parents:
        for place in ("node_modules/semver", "node_modules/npm/node_modules/semver"):
            if (folder / place / "package.json").is_file():
                return str(folder / place)
    pytest.skip("npm has no semver of its own here")


@pytest.mark.spec("DR-30.implements-8")
def test_agrees_with_npm() -> None:
    script = (
        "const semver = require(process.argv[1]);"
        "const {ranges, versions} = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "const rows = ranges.map(r => versions.map(v => semver.satisfies(v, r)));"
        "process.stdout.write(JSON.stringify(rows));"
    )
    done = subprocess.run(
        ["node", "-e", script, npm_semver()],
        input=json.dumps({"ranges": _RANGES, "versions": _VERSIONS}),
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
    )
    rows = json.loads(done.stdout)
    differ = [
        (version, text, expected)
        for text, row in zip(_RANGES, rows, strict=True)
        for version, expected in zip(_VERSIONS, row, strict=True)
        if in_range(version, text) is not expected
    ]
    assert differ == []
