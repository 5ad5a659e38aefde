"""Check the conformance of a live node with MCP-AQL: `python -m tools.aql_conformance`.

`test` gathers evidence from a node (started here, or at --url) or reads a bundle, and checks it.
`evidence` only writes the bundle, for other runners. `report` shows a report that was written as
JSON. `verify-fixtures` checks all bundles of a folder against their expected exit codes. The exit
code is 0 if all checks pass, 1 if a required check fails, 2 after a warning, and 3 if the checks
could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tools.aql_conformance import checks, report
from tools.aql_conformance.evidence import gather
from tools.aql_conformance.live import WAYS, Client, NoNode, started_node

VERSION = "interlock aql-conformance 1.0, MCP-AQL 1.0.0-draft"
NOT_TRIED = 3


class Wrong(Exception):
    """The checks cannot run with these arguments."""


class Parser(argparse.ArgumentParser):
    """An argument parser that ends with the exit code of checks that could not run."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(NOT_TRIED)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        return _run(chosen)
    except (Wrong, NoNode) as error:
        print(error, file=sys.stderr)
        return NOT_TRIED


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "version":
        print(VERSION)
        return 0
    if chosen.command == "report":
        try:
            shown = report.read(_raw(chosen.file))
        except msgspec.DecodeError as error:
            raise Wrong(f"{chosen.file} is not a report: {error}") from error
        _write(report.written(shown, chosen.format), chosen.output)
        return 0
    if chosen.command == "verify-fixtures":
        return _verify(chosen.folder)
    bundle = _read_bundle(chosen.file) if chosen.file else _live(chosen)
    if chosen.command == "evidence":
        _write(json.dumps(bundle, indent=1, ensure_ascii=False) + "\n", chosen.output)
        return 0
    judged = checks.evaluate(bundle, chosen.level, chosen.tier, chosen.category)
    _write(report.written(judged, chosen.format), chosen.output)
    return judged.exit_code


def _live(chosen: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        url = chosen.url or stack.enter_context(started_node())
        token = os.environ.get("AQL_CONFORMANCE_TOKEN", "")
        return gather([Client(url, mode, era, token) for mode, era in WAYS])


def _verify(folder: Path) -> int:
    bundles = sorted(folder.glob("*.json"))
    if not bundles:
        raise Wrong(f"there is no bundle in {folder}")
    wrong = 0
    for path in bundles:
        bundle = _read_bundle(path)
        expected = bundle.get("expected_exit_code", 0)
        found = checks.evaluate(bundle, bundle.get("expected_level", 1)).exit_code
        wrong += found != expected
        word = "PASS" if found == expected else "FAIL"
        print(f"{word} {path.name}: {found}, expected was {expected}")
    return 1 if wrong else 0


def _read_bundle(path: Path) -> dict[str, Any]:
    try:
        bundle = json.loads(_raw(path))
    except ValueError as error:
        raise Wrong(f"{path} is not JSON: {error}") from error
    if not isinstance(bundle, dict):
        raise Wrong(f"{path} is not a bundle")
    return bundle


def _raw(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Wrong(f"{path} cannot be read: {error.strerror}") from error


def _write(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="aql_conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    forms = ("json", "text", "markdown")

    test = commands.add_parser("test", help="check a node, or a bundle")
    test.add_argument(
        "file", type=Path, nargs="?", help="a bundle. Default: gather evidence from a node"
    )
    test.add_argument("--level", "-l", type=int, choices=(1, 2), default=1)
    test.add_argument("--tier", choices=("1", "2", "both"), default="both")
    test.add_argument("--category", "-c", default="", help="run only the checks of one category")
    test.add_argument("--format", "-f", choices=forms, default="text")
    evidence = commands.add_parser("evidence", help="write the bundle of a node")
    evidence.set_defaults(file=None)
    for one in (test, evidence):
        one.add_argument(
            "--url", help="URL of a node. Default: start a node with the demo upstream"
        )
    shown = commands.add_parser("report", help="show a report that was written as JSON")
    shown.add_argument("file", type=Path)
    shown.add_argument("--format", "-f", choices=forms, default="text")
    for one in (test, evidence, shown):
        one.add_argument(
            "--output", "-o", type=Path, help="output file. Default: print to the terminal"
        )
    verify = commands.add_parser("verify-fixtures", help="check all bundles of a folder")
    verify.add_argument("folder", type=Path)
    commands.add_parser("version", help="print the version")
    return parser


if __name__ == "__main__":
    sys.exit(main())
