"""Run the tests on a build without features: `make test-without FEATURE=topics`.

Separate several features by commas. `all` leaves only the core.

Copies the tracked files to a temporary folder, deletes each feature's folder and its line in
`app/features.py` (and those of features that require it), and runs the tests there. The tests of
the feature do not run: its folder in `tests`, its messages, modules that import it, and tests that
are marked `@pytest.mark.feature("topics")`. Requirements that only these tests prove are printed as
absent.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from interlock.app.features import load_features
from tools.spec_markers import read_tests
from tools.tree_copy import ROOT, copy_tree, create_environment

PACKAGES = ("tests", "tools", "bench")
"""Folders outside the build that may import it."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    absent = without(options.feature)
    with tempfile.TemporaryDirectory(prefix="interlock-without-") as folder:
        copy = Path(folder)
        # Some tests run as another user.
        copy.chmod(0o755)
        copy_tree(copy)
        for name in absent:
            shutil.rmtree(copy / "src" / "interlock" / name)
            shutil.rmtree(copy / "tests" / name, ignore_errors=True)
            (copy / "tests" / "messages" / f"{name}.txt").unlink(missing_ok=True)
        listed = copy / "src" / "interlock" / "app" / "features.py"
        lines = listed.read_text(encoding="utf-8").splitlines(keepends=True)
        dropped = {f'"{name}",' for name in absent}
        kept = "".join(line for line in lines if line.strip() not in dropped)
        listed.write_text(kept, encoding="utf-8")
        gone = modules_that_import(copy, absent)
        for path in gone:
            path.unlink()
        print(f"· without {', '.join(absent)}: {len(gone)} test modules import it", flush=True)
        if options.list:
            for path in gone:
                print(path.relative_to(copy))
        code = _run(create_environment(copy), copy, options.pytest)
        _print_absent(copy, options.feature, absent)
    return code


def without(names: str) -> list[str]:
    """Return the features of a list separated by commas, and the features that require them."""
    features = {feature.name: feature for feature in load_features()}
    if names == "all":
        return list(features)
    absent = names.split(",")
    for name in absent:
        if name not in features:
            raise SystemExit(f"there is no feature {name}: choose one of {', '.join(features)}")
    for name, feature in features.items():
        if name not in absent and set(feature.requires) & set(absent):
            absent.append(name)
    return absent


def modules_that_import(root: Path, absent: Iterable[str]) -> list[Path]:
    """Return modules outside the build that import an absent feature, or another such module."""
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    imports = {name: _imports(path) for name, path in modules.items()}
    roots = tuple(f"{top}.{name}" for name in absent for top in ("interlock", "tests"))
    gone: set[str] = set()
    while True:
        found = {
            name
            for name, used in imports.items()
            if name not in gone
            and any(one.startswith(f"{start}.") or one == start for one in used for start in roots)
        }
        found |= {name for name, used in imports.items() if name not in gone and used & gone}
        if not found:
            return [modules[name] for name in sorted(gone)]
        gone |= found


def _imports(path: Path) -> set[str]:
    """Return the modules that a module imports at its import."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return found


def _run(python: Path, copy: Path, arguments: Sequence[str]) -> int:
    environ = {**os.environ, "PYTHONHASHSEED": "0", "VIRTUAL_ENV": str(python.parent.parent)}
    environ.pop("PYTHONPATH", None)
    # The arguments can name tests of the absent features.
    kept = [one for one in arguments if not (ROOT / one).exists() or (copy / one).exists()]
    command = [str(python), "-m", "pytest", "--quiet", "--hypothesis-profile=ci", *kept]
    return subprocess.run(command, cwd=copy, env=environ, check=False).returncode


def _print_absent(copy: Path, names: str, absent: Sequence[str]) -> None:
    before = {proof.item for proof in read_tests(ROOT / "tests").proofs}
    marked = _marked(copy / "tests", absent)
    left = {
        proof.item
        for proof in read_tests(copy / "tests").proofs
        if proof.test.partition("[")[0] not in marked
        and proof.test.partition("::")[0] not in marked
    }
    lost = sorted(before - left)
    print(f"· {len(lost)} of {len(before)} proven requirements are absent without {names}")
    print("  " + " ".join(lost))


def _marked(tests: Path, absent: Sequence[str]) -> set[str]:
    """Return the tests, or whole files, that are marked with an absent feature."""
    found: set[str] = set()
    for path in tests.rglob("test_*.py"):
        name = path.relative_to(tests).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks, marked = node.decorator_list, f"{name}::{node.name}"
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                marks, marked = list(_each(node.value)), name
            else:
                continue
            if any(_is_of(one, absent) for one in marks):
                found.add(marked)
    return found


def _each(marks: ast.expr) -> Iterable[ast.expr]:
    return marks.elts if isinstance(marks, ast.List | ast.Tuple) else [marks]


def _is_of(mark: ast.expr, absent: Sequence[str]) -> bool:
    return (
        isinstance(mark, ast.Call)
        and ast.unparse(mark.func) == "pytest.mark.feature"
        and bool({ast.literal_eval(value) for value in mark.args} & set(absent))
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="test_without", description=__doc__)
    parser.add_argument("feature", help="features to delete: topics, topics,tree, or all")
    parser.add_argument("--list", action="store_true", help="print the omitted test modules")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
