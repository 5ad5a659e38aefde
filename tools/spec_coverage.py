"""Report which items of the specifications are proven: `python -m tools.spec_coverage`, or
`make coverage-spec`.

Without options, print the summary and write `docs/spec-coverage.md`. With `--check`, write nothing
and fail if that page is outdated. With `--missing AX-4`, print the unproven items of that section.
The first two fail on an unknown id, on a marker without a test, on a MUST that is claimed as done
without a test, on a marked test of an item with the state later or left out, and on a divergence
without a test.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import spec_report
from tools.spec_markers import read_tests
from tools.spec_register import RegisterError, claims, read_items, read_status

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 without faults, 1 with faults."""
    options = _parser().parse_args(arguments)
    root: Path = options.root
    try:
        items = read_items(root / "spec")
        claimed = claims(items, read_status(root / "spec" / "status.yaml"))
    except RegisterError as error:
        print(error, file=sys.stderr)
        return 1
    markers = read_tests(root / "tests")
    known = spec_report.rows(items, claimed, markers.proofs)
    if options.missing:
        for row in spec_report.unproven(known, options.missing):
            print(f"{row.item.id} {row.item.level}: {' '.join(row.item.says.split())}")
        return 0
    faults = markers.faults + spec_report.faults(known, markers.proofs)
    written = root / "docs" / "spec-coverage.md"
    text = spec_report.page(known)
    if not options.check:
        written.parent.mkdir(exist_ok=True)
        written.write_text(text, encoding="utf-8")
    elif not written.exists() or written.read_text(encoding="utf-8") != text:
        faults.append("docs/spec-coverage.md is outdated: run `make coverage-spec` and commit it")
    print(spec_report.terminal(known))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spec_coverage", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check that the page is current")
    parser.add_argument("--missing", nargs="+", metavar="ID", help="print the unproven items")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to read")
    return parser


if __name__ == "__main__":
    sys.exit(main())
