"""Find `@pytest.mark.spec("AX-4.1-1")` in test files without importing them.

A marker counts on a test function, on a test class, as `pytestmark` of a module or class, and as a
mark of a `pytest.param`, also if the parameters are a named list of the module. A marker without a
test, or on a test that never runs, is an error: it proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Proof(NamedTuple):
    """A test that is marked with the id of an item."""

    item: str
    test: str


class Markers(NamedTuple):
    """The proofs in a set of test files, in reading order, and the faults of their markers."""

    proofs: list[Proof]
    faults: list[str]


def read_tests(folder: Path) -> Markers:
    """Read the markers of all test files in a folder. Tests are named relative to the folder."""
    proofs: list[Proof] = []
    faults: list[str] = []
    for path in sorted(folder.rglob("test_*.py")):
        name = path.relative_to(folder).as_posix()
        found = read_source(path.read_text(encoding="utf-8"), name)
        proofs += found.proofs
        faults += found.faults
    return Markers(proofs, faults)


def read_source(source: str, name: str) -> Markers:
    """Read the markers of one test file."""
    reader = _Reader(name)
    reader.module(ast.parse(source, filename=name))
    return Markers(reader.proofs, reader.faults)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.proofs: list[Proof] = []
        self.faults: list[str] = []
        self.used: set[ast.Call] = set()
        self.lists: dict[str, list[ast.Call]] = {}

    def module(self, tree: ast.Module) -> None:
        for target, value in _assignments(tree.body):
            if target != "pytestmark":
                self.lists[target] = list(_calls(value, "spec"))
        self._body(tree.body, [], [], skipped=False)
        for call in _calls(tree, "spec"):
            if call not in self.used:
                self._fault(call, "this spec marker is on no test")

    def _body(
        self, body: list[ast.stmt], owners: list[str], inherited: list[ast.Call], skipped: bool
    ) -> None:
        marks = [value for target, value in _assignments(body) if target == "pytestmark"]
        inherited = inherited + [call for mark in marks for call in _calls(mark, "spec")]
        skipped = skipped or any(_never_runs(mark) for mark in marks)
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                own = [call for mark in node.decorator_list for call in _calls(mark, "spec")]
                never = skipped or any(map(_never_runs, node.decorator_list))
                self._body(node.body, [*owners, node.name], inherited + own, never)
            elif isinstance(node, FunctionNode) and node.name.startswith("test"):
                self._test(node, owners, inherited, skipped)

    def _test(
        self, node: FunctionNode, owners: list[str], inherited: list[ast.Call], skipped: bool
    ) -> None:
        own = [call for mark in node.decorator_list for call in _calls(mark, "spec")]
        for mark in node.decorator_list:
            for part in ast.walk(mark):
                if isinstance(part, ast.Name):
                    own += self.lists.get(part.id, [])
        calls = inherited + own
        self.used.update(calls)
        if not calls:
            return
        if skipped or any(map(_never_runs, node.decorator_list)):
            self._fault(node, f"{node.name} is skipped or expected to fail, so it proves nothing")
            return
        test = "::".join([self.name, *owners, node.name])
        for item in dict.fromkeys(item for call in calls for item in self._ids(call)):
            self.proofs.append(Proof(item, test))

    def _ids(self, call: ast.Call) -> Iterator[str]:
        if call.keywords or not call.args:
            self._fault(call, "a spec marker takes one or more ids and nothing else")
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
            else:
                self._fault(argument, "an id in a spec marker must be written out as a string")

    def _fault(self, node: ast.stmt | ast.expr, message: str) -> None:
        fault = f"{self.name}:{node.lineno}: {message}"
        if fault not in self.faults:
            self.faults.append(fault)


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _calls(node: ast.AST, mark: str) -> Iterator[ast.Call]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _mark_name(part.func) == mark:
            yield part


def _mark_name(node: ast.expr) -> str | None:
    """Return `spec` for `pytest.mark.spec` and `mark.spec`, and None for other expressions."""
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)
    return node.attr if name == "mark" else None


def _never_runs(mark: ast.expr) -> bool:
    """Return whether a mark skips the whole test, or expects its failure, without a condition."""
    parts = mark.elts if isinstance(mark, ast.List | ast.Tuple) else [mark]
    for part in parts:
        called = isinstance(part, ast.Call)
        name = _mark_name(part.func if isinstance(part, ast.Call) else part)
        if name == "skip" or (name == "xfail" and not (called and _has_condition(part))):
            return True
    return False


def _has_condition(part: ast.expr) -> bool:
    return isinstance(part, ast.Call) and bool(
        part.args or any(keyword.arg == "condition" for keyword in part.keywords)
    )
