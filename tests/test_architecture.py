"""The shape of the tree: layers, and what must never be committed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from interlock.app.features import load_features
from tests.support.timeouts import HANG_TIMEOUT

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "tests", "bench", "tools", "examples")
# Written in two parts, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
MACHINE_PATH = re.compile(r"(^|[^\w./-])/(wo" r"rk|ro" r"ot|tmp/scr" r"atch)/")


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"__pycache__", "node_modules"} & set(path.parts):
                yield path


def text_files() -> Iterator[Path]:
    yield from python_files(*CODE)
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "tools").glob("*.sh"))
    for name in ("pyproject.toml", "Makefile", "constraints.txt", ".ci/run", ".gitignore"):
        yield ROOT / name
    yield from sorted(ROOT.glob("*.md"))


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Facts(NamedTuple):
    """What the tests below want to know of a module."""

    docstring: str
    imported: frozenset[str]
    """The packages that it imports from, by their first names."""
    modules: frozenset[str]
    """The modules that it imports, or imports from, wherever in its text."""
    swallowing: tuple[int, ...]
    """The lines of handlers that drop every error."""


@cache
def facts(path: Path) -> Facts:
    """Read a module once for all tests of this file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules, swallowing = set[str](), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif (
            isinstance(node, ast.ExceptHandler)
            and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
            and all(isinstance(part, ast.Pass) for part in node.body)
        ):
            swallowing.append(node.lineno)
    imported = frozenset(name.split(".")[0] for name in modules)
    docstring = ast.get_docstring(tree) or ""
    return Facts(docstring, imported, frozenset(modules), tuple(swallowing))


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with the project's contracts, over a given copy of the source."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
            "--no-logo",
            "--config",
            str(ROOT / "pyproject.toml"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


def test_imports_point_one_way() -> None:
    run = lint_imports(ROOT / "src")
    assert run.returncode == 0, run.stdout + run.stderr
    # A line of `ignore_imports` whose import is gone must go, too. A build may lack the module.
    words = " ".join(run.stdout.split())
    unmatched = re.findall(r"No matches for ignored import (\S+)", words)
    assert not [name for name in unmatched if module_file(name).exists()]


def module_file(name: str) -> Path:
    return (ROOT / "src").joinpath(*name.split(".")).with_suffix(".py")


def between(path: str, feature: str, module: str) -> ParameterSet:
    """A wrong import of a feature, for builds that have both sides."""
    features = {path.partition("/")[0], feature} - {"core"}
    return pytest.param(
        path,
        f"import interlock.{feature}.{module}",
        "Imports point one way",
        marks=pytest.mark.feature(*sorted(features)),
        id=f"{path} imports {feature}",
    )


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("protocol/sse.py", "import asyncio", "Protocol code is pure"),
        ("protocol/sse.py", "import interlock.core.call", "Imports point one way"),
        ("errors.py", "import interlock.protocol", "Imports point one way"),
        ("primitives/backoff.py", "import random", "Building blocks are pure"),
        ("primitives/backoff.py", "import interlock.errors", "Imports point one way"),
        ("demo/__init__.py", "import interlock.core.ports", "The demo upstream stands alone"),
        ("core/call.py", "import interlock.trust.scopes", "Imports point one way"),
        between("core/call.py", "topics", "room"),
        ("trust/scopes.py", "import interlock.app.node", "Imports point one way"),
        between("topics/room.py", "tree", "registrar"),
        between("contracts/paths.py", "drivers", "binding"),
        ("drawer.py", "", "Imports point one way"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, room: str, line: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "interlock" / room
    path.parent.mkdir(exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else '"""A room."""\n'
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    run = lint_imports(tmp_path / "src")
    words = " ".join(run.stdout.split())
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(re.escape(contract) + r"[^.]*? BROKEN", words), run.stdout


def imports_of(features: Collection[str], path: Path) -> Iterator[str]:
    """Where a module imports one of these features."""
    for name in sorted(facts(path).modules):
        top, _, rest = name.partition(".")
        if top == "interlock" and rest.partition(".")[0] in features:
            yield f"{path} imports {name}"


def test_a_build_does_without_any_feature() -> None:
    """Nothing but a feature itself, and features that require it, imports it, not even late."""
    own = {one.name: {one.name, *one.requires} for one in load_features()}
    package = ROOT / "src" / "interlock"
    found: list[Any] = []
    for path in python_files("src"):
        top = path.relative_to(package).parts[0]
        found += imports_of({*own} - own.get(top, set()), path)
    assert not found


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import interlock.topics.room", True),
        ("from interlock import tree", True),
        ("def f() -> None:\n    from interlock.aql.view import X", True),
        ("from interlock.drivers.paths import X", False),
        ("import interlock.core.topics", False),
    ],
)
def test_an_import_of_a_feature_is_found(tmp_path: Path, line: str, wrong: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(line, encoding="utf-8")
    assert bool([*imports_of({"topics", "tree", "aql"}, path)]) is wrong


def test_every_module_says_what_it_is_for() -> None:
    assert not [where(path) for path in python_files("src", "tools") if not facts(path).docstring]


def test_source_stands_without_tests_and_tools() -> None:
    for path in python_files("src"):
        outside = facts(path).imported & {"tests", "tools", "bench"}
        assert not outside, f"{where(path)} imports {outside}"


def test_no_failure_is_swallowed() -> None:
    swallowed = [
        f"{where(path)}:{line}" for path in python_files("src") for line in facts(path).swallowing
    ]
    assert not swallowed


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine-path"])
def test_text_that_must_not_be_here(pattern: re.Pattern[str]) -> None:
    found = [
        f"{where(path)}:{number}: {line.strip()}"
        for path in text_files()
        if path.exists()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_versions_are_pinned_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin) for pin in pins)
    pinned = {normal(pin.split("==")[0]) for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    names = {normal(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in wanted}
    assert names <= pinned, f"run `make constraints`: {names - pinned}"


def normal(name: str) -> str:
    """A package name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
