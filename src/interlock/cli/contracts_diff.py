"""`interlock contracts diff` and `check`: what changed between two versions of a contract, whom it
breaks, and whether it may be released. Plain functions: `contracts.py` makes commands of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from interlock.cli import options, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.catalog.contracts.changes import Change, Role
    from interlock.catalog.contracts.verdict import Verdict
    from interlock.cli.contracts_diff_files import ContractFile

_BREAKS: Final = "breaks"
_FITS: Final = "fits"

OldArgument = Annotated[
    Path, typer.Argument(metavar="OLD", help="The contract as it was.", show_default=False)
]
NewArgument = Annotated[
    Path, typer.Argument(metavar="NEW", help="The contract as it is now.", show_default=False)
]
RoleOption = Annotated[
    str | None,
    typer.Option(
        "--role",
        metavar="[input|output|both]",
        parser=options.one_of("input", "output", "both"),
        help="How a plain JSON Schema is used: callers send it, read it, or it is stored (both).",
        show_default="both",
    ),
]
StrictOption = Annotated[
    bool | None,
    typer.Option(
        "--strict/--as-declared",
        help="Whether fields that a schema does not name count as sent, so that a new optional "
        "field can break an open object. Default: yes for --role input and output, no for tools.",
        show_default=False,
    ),
]
IncludeOption = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", metavar="DIR", help="Where .proto files find their imports."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def diff(
    old: OldArgument,
    new: NewArgument,
    role: RoleOption = None,
    strict: StrictOption = None,
    include: IncludeOption = None,
    json: JsonOption = False,
) -> None:
    """Show what changed between two contracts, and whom it breaks.

    Every change has a class and a path. What cannot be shown to be compatible is breaking.
    With --role input a schema is taken literally: an object that is not closed
    (additionalProperties: false) lets callers send any field, so a new optional one may clash with
    what they sent, and is FIELD_CLAIMED. With both only what the schema names counts as sent, and
    the same field fits; --as-declared says that for input, too.

    \b
    A contract is one of:
      a JSON Schema            who sends or reads it: --role
      an MCP tool              its arguments, results, effects and words
      the result of tools/list every tool in it
      a TOOL.md                as a tool
      a .proto file            compiled; imports are found with --include
      a descriptor set         as protoc --descriptor_set_out writes it

    \b
    Exit codes:
      0  compatible: whoever relied on the old contract can go on
      1  breaking
      2  wrong usage
      3  a file cannot be read, or is no contract

    \b
    Examples:
      interlock contracts diff old.schema.json new.schema.json --role input
      interlock contracts diff tools-1.4.json tools-1.5.json
      interlock contracts diff v1/agent.proto v2/agent.proto --include proto --json
    """
    before, after, changes = _compared(old, new, role, strict, include)
    if json:
        say.as_json(_as_data(before, after, changes))
    else:
        _print_changes(changes)
        say.note(_summary(changes, before.version))
    if any(change.breaking for change in changes):
        raise typer.Exit(say.FAILED)


def check(
    old: OldArgument,
    new: NewArgument,
    old_version: Annotated[
        str | None,
        typer.Option(
            "--old-version", metavar="VERSION", help="The version of OLD, unless it says so itself."
        ),
    ] = None,
    new_version: Annotated[
        str | None,
        typer.Option(
            "--new-version", metavar="VERSION", help="The version of NEW, unless it says so itself."
        ),
    ] = None,
    guide: Annotated[
        Path | None,
        typer.Option(
            "--guide", metavar="FILE", help="The migration guide; a breaking major needs one."
        ),
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice",
            metavar="VERSION",
            help="The version that announced the break: at least two releases ago.",
        ),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release", metavar="VERSION", help="A version published so far; for each of them."
        ),
    ] = None,
    role: RoleOption = None,
    strict: StrictOption = None,
    include: IncludeOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a new version of a contract may be released under its number.

    \b
    A break needs
      a new major version,
      a migration guide that names both versions, and
      a deprecation notice that is two releases old (patches do not count).
    An addition needs a new minor version.

    \b
    Exit codes:
      0  it may, perhaps with a warning
      1  it may not, such as: Breaking changes detected without major version bump
      2  wrong usage
      3  a file cannot be read, or is no contract

    \b
    Examples:
      interlock contracts check old.json new.json --old-version 1.4.0 --new-version 1.5.0
      interlock contracts check v1/TOOL.md v2/TOOL.md --guide docs/1-to-2.md --notice 1.3.0
    """
    from interlock.catalog.contracts.verdict import judge
    from interlock.errors import InterlockError

    before, after, changes = _compared(old, new, role, strict, include)
    try:
        verdict = judge(
            _version(old_version, before, "--old-version"),
            _version(new_version, after, "--new-version"),
            changes,
            guide=guide,
            notice=notice,
            releases=release or (),
        )
    except InterlockError as error:
        raise typer.BadParameter(error.message) from None
    if json:
        say.as_json({**_as_data(before, after, changes), "verdict": _verdict_as_data(verdict)})
    else:
        _print_changes(changes)
        _print_verdict(verdict)
    if not verdict.passed:
        raise typer.Exit(say.FAILED)


def _compared(
    old: Path, new: Path, role: str | None, strict: bool | None, include: Sequence[Path] | None
) -> tuple[ContractFile, ContractFile, list[Change]]:
    from interlock.cli.contracts_diff_files import SCHEMA, compare, read_contract_file

    before = read_contract_file(old, include or ())
    after = read_contract_file(new, include or ())
    if role is not None and before.kind != SCHEMA:
        raise typer.BadParameter(
            f"--role is for a plain JSON Schema; {old} is a {before.kind}, and says itself what is "
            "sent and what is read."
        )
    return before, after, compare(before, after, cast("Role | None", role), strict)


def _version(given: str | None, file: ContractFile, option: str) -> str:
    version = given or file.version
    if version is None:
        raise typer.BadParameter(f"{file.path} does not say its version: write {option}.")
    return version


# -- for a program


def _as_data(old: ContractFile, new: ContractFile, changes: list[Change]) -> dict[str, Any]:
    from interlock.catalog.contracts.compatibility import bump

    return {
        "old": str(old.path),
        "new": str(new.path),
        "kind": old.kind,
        "compatible": not any(change.breaking for change in changes),
        "bump": str(bump(changes)),
        "changes": changes,
    }


def _verdict_as_data(verdict: Verdict) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(verdict)
    # They stand beside it.
    del data["changes"]
    return data


# -- for a person


def _print_changes(changes: Sequence[Change]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not changes:
        return
    rows = [
        (
            _BREAKS if change.breaking else _FITS,
            str(change.reason),
            say.printable(change.path or "/"),
            say.printable(change.sentence),
        )
        for change in changes
    ]
    console = say.console()
    if not console.is_terminal:
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print("  ".join((*cells, row[3])))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", "class", "path", "what changed"):
        table.add_column(title, no_wrap=title in ("", "class"), overflow="fold")
    for mark, reason, path, sentence in rows:
        style = "bold red" if mark == _BREAKS else "green"
        table.add_row(Text(mark, style), reason, Text(path, "bold"), Text(sentence))
    console.print(table)


def _summary(changes: Sequence[Change], version: str | None) -> str:
    from interlock.catalog.contracts.compatibility import bump, next_version

    if not changes:
        return "nothing changed."
    broken = sum(change.breaking for change in changes)
    counted = f"{len(changes)} {'change' if len(changes) == 1 else 'changes'}"
    judged = f"{broken} breaking" if broken else "all compatible"
    needed = f"needs a new {bump(changes)} version"
    if version is not None:
        needed += f": {version} → {next_version(version, changes)}"
    return f"{counted}, {judged}; {needed}."


def _print_verdict(verdict: Verdict) -> None:
    versions = f"{verdict.old_version} → {verdict.new_version}"
    if verdict.passed:
        say.note(f"{versions} may be released: {verdict.headline}")
    else:
        # That it is compatible is no reason why not: the problems below say that.
        broken = any(change.breaking for change in verdict.changes)
        say.problem(
            f"{versions} may not be released: {verdict.headline if broken else ''}".rstrip()
        )
    for warning in verdict.warnings:
        say.note(f"  warning: {say.printable(warning)}")
    for one in verdict.problems:
        say.note(f"  {say.printable(one)}")
    if not verdict.passed and verdict.bump == "major":
        say.note(f"  The lowest version for these changes is {verdict.lowest}.")
