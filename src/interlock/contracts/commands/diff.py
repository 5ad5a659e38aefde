"""`interlock contracts diff` and `check`: what changed between two versions of a contract, whom it
breaks, and whether it may be released. Plain functions: `contracts.py` makes commands of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec
import typer
from msgspec import Struct

from interlock.contracts.diff.changes import Role, SchemaChange
from interlock.core.config.problems import ConfigError, Problem
from interlock.errors import InterlockError
from interlock.primitives.text import format_count
from interlock.terminal import options, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.contracts.diff.changes import Role, SchemaChange
    from interlock.contracts.diff.verdict import ReleaseVerdict
    from interlock.manifests.model import ToolContract


# -- Files that hold contracts, as `interlock contracts diff` and `check` read them.
#
# What a file is shows from what is in it: a JSON Schema, an MCP tool, a list of tools, a TOOL.md,
# a .proto file or a set of Protobuf descriptors. What cannot be read is a ConfigError with the
# file.

MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_LINES: Final = 20
_DESCRIPTORS: Final = (".binpb", ".pb", ".desc", ".protoset", ".fds")
_FORMS: Final = (
    "write a JSON Schema, an MCP tool, the result of tools/list, a TOOL.md, a .proto file or a "
    "descriptor set"
)

_SILENT: Final = "it cannot be compiled, and the compiler does not say why"

SCHEMA, TOOL, TOOLS, DESCRIPTORS = "JSON Schema", "tool", "list of tools", "descriptor set"


class ContractFile(Struct, frozen=True):
    """What a file holds."""

    path: Path
    kind: str
    content: Any
    version: str | None = None
    """Where the file says it itself."""


def read_contract_file(path: Path, include: Sequence[Path] = ()) -> ContractFile:
    """The contract in a file. `include`: folders where .proto files find what they import.

    Raises ConfigError.
    """
    if path.suffix == ".proto":
        return ContractFile(path, DESCRIPTORS, _compiled(path, include))
    if path.suffix == ".md":
        from interlock.manifests.tool_reader import read_contract

        contract = read_contract(path)
        return ContractFile(path, TOOL, definition_of(contract), contract.version)
    data = _read(path)
    if path.suffix in _DESCRIPTORS:
        return ContractFile(path, DESCRIPTORS, data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        # A descriptor set begins with the tag of its first file.
        if data[:1] == b"\n" and b"\0" in data[:4096]:
            return ContractFile(path, DESCRIPTORS, data)
        raise ConfigError.of(f"no contract can be read: {exc}", _FORMS, file=str(path)) from None
    return _recognized(path, value)


def compare(
    old: ContractFile, new: ContractFile, role: Role | None, strict: bool | None
) -> list[SchemaChange]:
    """What changed between two files. Raises ConfigError when they cannot be compared."""
    if old.kind == TOOL and new.kind == TOOLS:
        old = ContractFile(old.path, TOOLS, [old.content])
    elif old.kind == TOOLS and new.kind == TOOL:
        new = ContractFile(new.path, TOOLS, [new.content])
    if old.kind != new.kind:
        raise ConfigError.of(
            f"{old.path} is a {old.kind}, and {new.path} a {new.kind}",
            "only what is of one kind can be compared",
        )
    if old.kind == DESCRIPTORS:
        return _descriptors(old, new)
    if old.kind == SCHEMA:
        from interlock.contracts.diff.schemas import diff_schemas

        for one in (old, new):
            _check_schema(one.path, one.content, "")
        return diff_schemas(old.content, new.content, role or "both", strict=strict)
    from interlock.contracts.diff.tools import diff_tool_lists, diff_tools

    for one in (old, new):
        for tool in [one.content] if one.kind == TOOL else one.content:
            _check_tool(one.path, tool)
    if old.kind == TOOL:
        return diff_tools(old.content, new.content, strict=bool(strict))
    return diff_tool_lists(old.content, new.content, strict=bool(strict))


def definition_of(contract: ToolContract) -> dict[str, Any]:
    """A contract as the definition of an MCP tool."""
    return {
        "name": contract.id,
        "title": contract.name,
        "description": contract.description,
        "inputSchema": contract.inputs,
        "outputSchema": contract.outputs,
        "annotations": {
            "readOnlyHint": not contract.mutates,
            "destructiveHint": bool(contract.mutates) and contract.risk_level >= 3,
            "idempotentHint": contract.idempotent,
        },
        "approval": contract.approval,
    }


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise ConfigError.of(f"cannot be read: {exc.strerror}", file=str(path)) from None
    if len(data) > MOST_BYTES:
        raise ConfigError.of(f"has more than {MOST_BYTES:,} bytes", file=str(path))
    return data


def _recognized(path: Path, value: Any) -> ContractFile:
    inside = value.get("result") if isinstance(value, dict) else None
    if isinstance(inside, dict) and "tools" in inside:
        # The whole response to tools/list.
        value = inside
    if isinstance(value, dict) and isinstance(value.get("tools"), list):
        value = value["tools"]
    if isinstance(value, list):
        if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in value):
            raise ConfigError.of(
                "it is a list of something else than tools", _FORMS, file=str(path)
            )
        return ContractFile(path, TOOLS, value)
    if isinstance(value, dict) and "inputSchema" in value:
        return ContractFile(path, TOOL, value)
    if isinstance(value, dict | bool):
        return ContractFile(path, SCHEMA, value)
    raise ConfigError.of("it is no contract", _FORMS, file=str(path))


def _check_tool(path: Path, tool: dict[str, Any]) -> None:
    for word in ("inputSchema", "outputSchema"):
        if tool.get(word) is not None:
            _check_schema(path, tool[word], f"{tool.get('name')}: {word}: ")


def _check_schema(path: Path, schema: Any, place: str) -> None:
    """Whoever compares files wants to know which of them is wrong, and where."""
    from interlock.contracts.diff.documents import SchemaDocument, UnreadableSchema

    try:
        SchemaDocument(schema)
    except UnreadableSchema as exc:
        raise ConfigError.of(f"{place}it is no JSON Schema: {exc}", file=str(path)) from None


# -- Protobuf


def _descriptors(old: ContractFile, new: ContractFile) -> list[SchemaChange]:
    from interlock.contracts.diff.protobuf import diff_descriptors, read_descriptors

    for one in (old, new):
        try:
            read_descriptors(one.content)
        except InterlockError as exc:
            raise ConfigError.of(exc.message, file=str(one.path)) from None
    return diff_descriptors(old.content, new.content)


def _compiled(path: Path, include: Sequence[Path]) -> bytes:
    from interlock.contracts.schemas.protobuf_compiler import CompileError, protoc

    _read(path)
    folders = [folder.resolve() for folder in include] or [path.resolve().parent]
    try:
        return protoc([str(path.resolve())], folders, cwd=path.resolve().parent)
    except CompileError as refused:
        raise _refused(path, refused.said) from None
    except InterlockError as error:
        raise ConfigError.of(error.message, "or give a descriptor set", file=str(path)) from None


def _refused(path: Path, said: str) -> ConfigError:
    """What the compiler did not like, with the places that it names."""
    from interlock.contracts.schemas.protobuf_compiler import read_messages

    problems: list[Problem] = []
    for one in read_messages(said):
        if one.line:
            problems.append(Problem(one.file, one.line, one.column, "", one.words, ""))
            continue
        words = f"{one.file}: {one.words}" if one.file else one.words.strip()
        hint = "give the folder of its imports with --include" if "not found" in words else ""
        problems.append(Problem(str(path), 0, 0, "", words, hint))
    return ConfigError(problems[:_MOST_LINES] or [Problem(str(path), 0, 0, "", _SILENT, "")])


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
        parser=options.choice_reader("input", "output", "both"),
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
        output.print_json(_as_data(before, after, changes))
    else:
        _print_changes(changes)
        output.print_note(_summary(changes, before.version))
    if any(change.breaking for change in changes):
        raise typer.Exit(output.FAILED)


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
    from interlock.contracts.diff.verdict import judge
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
        output.print_json(
            {**_as_data(before, after, changes), "verdict": _verdict_as_data(verdict)}
        )
    else:
        _print_changes(changes)
        _print_verdict(verdict)
    if not verdict.passed:
        raise typer.Exit(output.FAILED)


def _compared(
    old: Path, new: Path, role: str | None, strict: bool | None, include: Sequence[Path] | None
) -> tuple[ContractFile, ContractFile, list[SchemaChange]]:

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


def _as_data(old: ContractFile, new: ContractFile, changes: list[SchemaChange]) -> dict[str, Any]:
    from interlock.contracts.diff.compatibility import bump

    return {
        "old": str(old.path),
        "new": str(new.path),
        "kind": old.kind,
        "compatible": not any(change.breaking for change in changes),
        "bump": str(bump(changes)),
        "changes": changes,
    }


def _verdict_as_data(verdict: ReleaseVerdict) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(verdict)
    # They stand beside it.
    del data["changes"]
    return data


# -- for a person


def _print_changes(changes: Sequence[SchemaChange]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not changes:
        return
    rows = [
        (
            _BREAKS if change.breaking else _FITS,
            str(change.reason),
            output.sanitize(change.path or "/"),
            output.sanitize(change.sentence),
        )
        for change in changes
    ]
    console = output.create_console()
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


def _summary(changes: Sequence[SchemaChange], version: str | None) -> str:
    from interlock.contracts.diff.compatibility import bump, next_version

    if not changes:
        return "nothing changed."
    broken = sum(change.breaking for change in changes)
    counted = format_count(len(changes), "change")
    judged = f"{broken} breaking" if broken else "all compatible"
    needed = f"needs a new {bump(changes)} version"
    if version is not None:
        needed += f": {version} → {next_version(version, changes)}"
    return f"{counted}, {judged}; {needed}."


def _print_verdict(verdict: ReleaseVerdict) -> None:
    versions = f"{verdict.old_version} → {verdict.new_version}"
    if verdict.passed:
        output.print_note(f"{versions} may be released: {verdict.headline}")
    else:
        # That it is compatible is no reason why not: the problems below say that.
        broken = any(change.breaking for change in verdict.changes)
        output.print_problem(
            f"{versions} may not be released: {verdict.headline if broken else ''}".rstrip()
        )
    for warning in verdict.warnings:
        output.print_note(f"  warning: {output.sanitize(warning)}")
    for one in verdict.problems:
        output.print_note(f"  {output.sanitize(one)}")
    if not verdict.passed and verdict.bump == "major":
        output.print_note(f"  The lowest version for these changes is {verdict.lowest}.")
