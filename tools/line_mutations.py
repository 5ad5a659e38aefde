"""Change random lines of the product, one at a time, and check that tests fail.

    python -m tools.line_mutations --count 100 --seed 7

A change is a negated condition, another comparison, another number, a removed call or another
result. Lines of messages, types, imports and logging are not changed. The tests of a module run in
stages until a test fails: test modules that import it, the other tests of its package, then the
tests of the command line and of whole programs. Survivors are printed with their change. Look at
each survivor: some changes have no observable effect.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.mutation_runner import (
    COLLECTION,
    INVALID,
    Change,
    MutationTree,
    print_progress,
    run_in_trees,
)

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("demo/", "__main__.py")
"""Modules that are only examples, or that start the program."""
LAST_STAGES = ("tests/app", "tests/cli", "tests/behaviour")

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.BitOr: "&",
    ast.BitAnd: "|", ast.Mod: "*",
}  # fmt: skip
_QUIET_CALLS = ("_log.", "logging.", "warnings.", "faults.")


class LineMutation(NamedTuple):
    """The change of one line."""

    file: str
    line: int
    before: str
    after: str

    @property
    def label(self) -> str:
        return f"{self.file}:{self.line}: {self.before.strip()}  →  {self.after.strip()}"


class Edit(NamedTuple):
    """A replacement within one line."""

    line: int
    start: int
    end: int
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    mutations = sample(ROOT, options.count, options.seed)
    if options.list:
        for mutation in mutations:
            print(mutation.label)
        return 0
    stages = TestStages(ROOT, near=options.near)
    survivors: list[str] = []
    killed = 0
    for number, (mutation, killer) in enumerate(
        run_in_trees(mutations, lambda tree, one: _run(tree, one, stages), jobs=options.jobs),
        start=1,
    ):
        print_progress(f"{number}/{len(mutations)} {killer or 'SURVIVED'}: {mutation.label}")
        if killer:
            killed += 1
        else:
            survivors.append(mutation.label)
    print(f"{killed} of {len(mutations)} mutations were killed. Survivors:")
    for label in survivors:
        print(f"  {label}")
    return 0


def sample(root: Path, count: int, seed: int) -> list[LineMutation]:
    """Choose lines with equal probability, and one change for each."""
    choice = random.Random(seed)
    lines: dict[tuple[str, int], list[Edit]] = {}
    sources: dict[str, list[str]] = {}
    for path in sorted((root / "src" / "interlock").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in name for part in LEFT_OUT):
            continue
        text = path.read_text(encoding="utf-8")
        sources[name] = text.splitlines(keepends=True)
        for edit in find_edits(text):
            lines.setdefault((name, edit.line), []).append(edit)
    mutations = []
    for name, line in choice.sample(sorted(lines), count):
        edit = choice.choice(lines[name, line])
        before = sources[name][line - 1]
        data = before.encode()
        after = (data[: edit.start] + edit.text.encode() + data[edit.end :]).decode()
        mutations.append(LineMutation(name, line, before, after))
    return mutations


def find_edits(source: str) -> Iterator[Edit]:
    """Return every possible change of a module. Offsets are in bytes, as in `ast`."""
    tree = ast.parse(source)
    lines = source.encode().splitlines()
    ignored = {id(part) for node in ast.walk(tree) for part in _ignored_parts(node)}

    def visit(node: ast.AST) -> Iterator[Edit]:
        if id(node) in ignored:
            return
        yield from _edits_of(node, lines)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    for edit in visit(tree):
        if edit.line:
            yield edit


def _ignored_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Return the parts of a node in which nothing is changed: types, messages, log calls."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                yield argument.annotation
        if node.returns is not None:
            yield node.returns
        yield from node.decorator_list
        if node.name == "__repr__":
            yield node
    elif isinstance(node, ast.ClassDef):
        yield from node.decorator_list
        yield from node.keywords
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, ast.Raise):
        yield node
    elif isinstance(node, ast.Call):
        if ast.unparse(node.func).startswith(_QUIET_CALLS) or ast.unparse(node.func) in (
            "cast",
            "TypeVar",
        ):
            yield node
    elif (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING") or isinstance(
        node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
    ):
        yield node


def _edits_of(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield _between(node.left, node.comparators[0], _COMPARISONS[type(node.ops[0])])
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        left, right = node.values
        yield _between(left, right, "or" if isinstance(node.op, ast.And) else "and")
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield _between(node.left, node.right, _OPERATORS[type(node.op)])
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _around(node.test, "not (", ")", lines)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield _replace(node, str(not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        # A limit of 31 instead of 30 seconds is not worth a test; ten times as much is.
        yield _replace(node, repr(node.value * 10 if abs(node.value) >= 10 else node.value + 1))
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant)):
            yield _replace(node, "return None")
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not ast.unparse(call).startswith(_QUIET_CALLS):
            yield _replace(node, "pass")


_NO_EDIT = Edit(0, 0, 0, "")


def _replace(node: ast.expr | ast.stmt, text: str) -> Edit:
    if node.lineno != node.end_lineno or node.end_col_offset is None:
        return _NO_EDIT
    return Edit(node.lineno, node.col_offset, node.end_col_offset, text)


def _between(left: ast.expr, right: ast.expr, text: str) -> Edit:
    """Replace the operator between two expressions on one line without parentheses."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return _NO_EDIT
    return Edit(right.lineno, left.end_col_offset, right.col_offset, f" {text} ")


def _around(node: ast.expr, before: str, after: str, lines: list[bytes]) -> Edit:
    segment = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
    return _replace(node, f"{before}{segment}{after}")


class TestStages:
    """The tests that may kill a mutation of a module. The most likely tests come first."""

    def __init__(self, root: Path, *, near: bool = False) -> None:
        self._root = root
        self._near = near
        self._importers: dict[str, list[str]] = {}
        for path in sorted((root / "tests").rglob("test_*.py")):
            name = path.relative_to(root).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    self._importers.setdefault(node.module, []).append(name)
                    for alias in node.names:
                        self._importers.setdefault(f"{node.module}.{alias.name}", []).append(name)

    def of(self, file: str) -> Iterator[list[str]]:
        """Return the stages for a source file."""
        path = Path(file).relative_to("src")
        module = ".".join(path.with_suffix("").parts)
        importers = sorted(set(self._importers.get(module, [])))
        if importers:
            yield importers
        package = Path("tests", *path.parts[1:-1])
        while not (self._root / package).is_dir():
            package = package.parent
        if package != Path("tests"):
            yield [package.as_posix()]
            if len(package.parts) > 2:
                yield [Path(*package.parts[:2]).as_posix()]
        if not self._near:
            for folder in LAST_STAGES:
                yield [folder]


def _run(tree: MutationTree, mutation: LineMutation, stages: TestStages) -> str:
    """Return the test that killed the mutation. Empty: it survived."""
    path = tree.folder / mutation.file
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[mutation.line - 1] = mutation.after
    whole = path.read_text(encoding="utf-8")
    with tree.changed(Change(mutation.file, whole, "".join(lines))):
        for tests in stages.of(mutation.file):
            failure = tree.test(tests).failure
            if failure == COLLECTION:
                return "the import"
            if failure is not None and failure not in INVALID:
                return failure
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="line_mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="number of lines (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs (default: 2)")
    parser.add_argument("--near", action="store_true", help="omit the last stages of tests")
    parser.add_argument("--list", action="store_true", help="print the sample, run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
