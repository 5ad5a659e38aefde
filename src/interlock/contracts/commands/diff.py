"""The commands `interlock contracts diff` and `check`: compare two versions of a contract, and
check whether the new one may be released. Plain functions: `contracts.py` registers them as
commands.
"""

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


# -- Contract files, as `interlock contracts diff` and `check` read them.
#
# The content of a file tells its kind: a JSON Schema, an MCP tool, a list of tools, a TOOL.md, a
# .proto file or a set of Protobuf descriptors. An unreadable file is a ConfigError that names it.

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_MAX_PROBLEMS: Final = 20
_DESCRIPTOR_ENDINGS: Final = (".binpb", ".pb", ".desc", ".protoset", ".fds")
_FORMATS_HINT: Final = (
    "use a JSON Schema, an MCP tool, the result of tools/list, a TOOL.md, a .proto file or a "
    "descriptor set"
)

_UNKNOWN_COMPILER_ERROR: Final = "the compiler failed without a message"

SCHEMA, TOOL, TOOLS, DESCRIPTORS = "JSON Schema", "tool", "list of tools", "descriptor set"


class ContractFile(Struct, frozen=True):
    """The content of a file."""

    path: Path
    kind: str
    content: Any
    version: str | None = None
    """The version, if the file declares it."""


def read_contract_file(path: Path, include: Sequence[Path] = ()) -> ContractFile:
    """Read the contract in a file. Raises ConfigError.

    Args:
        include: folders in which .proto files find their imports.
    """
    if path.suffix == ".proto":
        return ContractFile(path, DESCRIPTORS, _compile(path, include))
    if path.suffix == ".md":
        from interlock.manifests.tool_reader import read_contract

        contract = read_contract(path)
        return ContractFile(path, TOOL, tool_definition(contract), contract.version)
    data = _read(path)
    if path.suffix in _DESCRIPTOR_ENDINGS:
        return ContractFile(path, DESCRIPTORS, data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        # A descriptor set starts with the tag of its first file.
        if data[:1] == b"\n" and b"\0" in data[:4096]:
            return ContractFile(path, DESCRIPTORS, data)
        raise ConfigError.of(
            f"this is not a contract: {exc}", _FORMATS_HINT, file=str(path)
        ) from None
    return _detect_kind(path, value)


def compare(
    old: ContractFile, new: ContractFile, role: Role | None, strict: bool | None
) -> list[SchemaChange]:
    """Return the changes between two files. Raises ConfigError if they cannot be compared."""
    if old.kind == TOOL and new.kind == TOOLS:
        old = ContractFile(old.path, TOOLS, [old.content])
    elif old.kind == TOOLS and new.kind == TOOL:
        new = ContractFile(new.path, TOOLS, [new.content])
    if old.kind != new.kind:
        raise ConfigError.of(
            f"{old.path} is a {old.kind}, but {new.path} is a {new.kind}",
            "compare two files of the same kind",
        )
    if old.kind == DESCRIPTORS:
        return _compare_descriptors(old, new)
    if old.kind == SCHEMA:
        from interlock.contracts.diff.schemas import diff_schemas

        for file in (old, new):
            _check_schema(file.path, file.content, "")
        return diff_schemas(old.content, new.content, role or "both", strict=strict)
    from interlock.contracts.diff.tools import diff_tool_lists, diff_tools

    for file in (old, new):
        for tool in [file.content] if file.kind == TOOL else file.content:
            _check_tool(file.path, tool)
    if old.kind == TOOL:
        return diff_tools(old.content, new.content, strict=bool(strict))
    return diff_tool_lists(old.content, new.content, strict=bool(strict))


def tool_definition(contract: ToolContract) -> dict[str, Any]:
    """Return a contract as the definition of an MCP tool."""
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
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError.of(f"the file cannot be read: {exc.strerror}", file=str(path)) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError.of(f"the file has more than {MAX_FILE_BYTES:,} bytes", file=str(path))
    return data


def _detect_kind(path: Path, value: Any) -> ContractFile:
    result = value.get("result") if isinstance(value, dict) else None
    if isinstance(result, dict) and "tools" in result:
        # The complete response to tools/list.
        value = result
    if isinstance(value, dict) and isinstance(value.get("tools"), list):
        value = value["tools"]
    if isinstance(value, list):
        if not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in value):
            raise ConfigError.of(
                "the list contains something other than tools", _FORMATS_HINT, file=str(path)
            )
        return ContractFile(path, TOOLS, value)
    if isinstance(value, dict) and "inputSchema" in value:
        return ContractFile(path, TOOL, value)
    if isinstance(value, dict | bool):
        return ContractFile(path, SCHEMA, value)
    raise ConfigError.of("this is not a contract", _FORMATS_HINT, file=str(path))


def _check_tool(path: Path, tool: dict[str, Any]) -> None:
    for member in ("inputSchema", "outputSchema"):
        if tool.get(member) is not None:
            _check_schema(path, tool[member], f"{tool.get('name')}: {member}: ")


def _check_schema(path: Path, schema: Any, prefix: str) -> None:
    """Raise ConfigError for an invalid schema, with the file and the location."""
    from interlock.contracts.diff.documents import SchemaDocument, UnreadableSchema

    try:
        SchemaDocument(schema)
    except UnreadableSchema as exc:
        raise ConfigError.of(f"{prefix}invalid JSON Schema: {exc}", file=str(path)) from None


# -- Protobuf


def _compare_descriptors(old: ContractFile, new: ContractFile) -> list[SchemaChange]:
    from interlock.contracts.diff.protobuf import diff_descriptors, read_descriptors

    for file in (old, new):
        try:
            read_descriptors(file.content)
        except InterlockError as exc:
            raise ConfigError.of(exc.message, file=str(file.path)) from None
    return diff_descriptors(old.content, new.content)


def _compile(path: Path, include: Sequence[Path]) -> bytes:
    from interlock.contracts.schemas.protobuf_compiler import CompileError, protoc

    _read(path)
    folders = [folder.resolve() for folder in include] or [path.resolve().parent]
    try:
        return protoc([str(path.resolve())], folders, cwd=path.resolve().parent)
    except CompileError as error:
        raise _compile_problems(path, error.output) from None
    except InterlockError as error:
        raise ConfigError.of(
            error.message, "install it, or use a descriptor set", file=str(path)
        ) from None


def _compile_problems(path: Path, output: str) -> ConfigError:
    """Return the errors of the compiler with their locations."""
    from interlock.contracts.schemas.protobuf_compiler import read_messages

    problems: list[Problem] = []
    for message in read_messages(output):
        if message.line:
            problems.append(
                Problem(message.file, message.line, message.column, "", message.text, "")
            )
            continue
        text = f"{message.file}: {message.text}" if message.file else message.text.strip()
        hint = "name the folder of its imports with --include" if "not found" in text else ""
        problems.append(Problem(str(path), 0, 0, "", text, hint))
    return ConfigError(
        problems[:_MAX_PROBLEMS] or [Problem(str(path), 0, 0, "", _UNKNOWN_COMPILER_ERROR, "")]
    )


_BREAKING_LABEL: Final = "breaking"
_COMPATIBLE_LABEL: Final = "compatible"

OldArgument = Annotated[
    Path, typer.Argument(metavar="OLD", help="The old version.", show_default=False)
]
NewArgument = Annotated[
    Path, typer.Argument(metavar="NEW", help="The new version.", show_default=False)
]
RoleOption = Annotated[
    str | None,
    typer.Option(
        "--role",
        metavar="[input|output|both]",
        parser=options.choice_reader("input", "output", "both"),
        help="Who uses a plain JSON Schema: callers send it (input), read it (output), or it is "
        "stored (both).",
        show_default="both",
    ),
]
StrictOption = Annotated[
    bool | None,
    typer.Option(
        "--strict/--as-declared",
        help="Treat fields that a schema does not name as sent, so that a new optional field can "
        "break an open object. Default: strict for --role input and output, not for tools.",
        show_default=False,
    ),
]
IncludeOption = Annotated[
    list[Path] | None,
    typer.Option("--include", "-I", metavar="DIR", help="The folder of imports of .proto files."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def diff(
    old: OldArgument,
    new: NewArgument,
    role: RoleOption = None,
    strict: StrictOption = None,
    include: IncludeOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two contracts, and show which changes break callers.

    Every change has a class and a path. A change counts as breaking unless it is proven compatible.
    With --role input a schema is taken literally: an object that is not closed
    (additionalProperties: false) lets callers send any field. A new optional field may then clash
    with what they sent, and is FIELD_CLAIMED. With --role both, only the fields that the schema
    names count as sent, and the same field is compatible; --as-declared selects this for input,
    too.

    \b
    A contract is one of:
      a JSON Schema            its use is set by --role
      an MCP tool              its arguments, results, effects and descriptions
      the result of tools/list every tool in it
      a TOOL.md                as a tool
      a .proto file            compiled, with imports from --include
      a descriptor set         the output of protoc --descriptor_set_out

    \b
    Exit codes:
      0  compatible: callers of the old contract keep working
      1  breaking
      2  invalid usage
      3  a file cannot be read, or is not a contract

    \b
    Examples:
      interlock contracts diff old.schema.json new.schema.json --role input
      interlock contracts diff tools-1.4.json tools-1.5.json
      interlock contracts diff v1/agent.proto v2/agent.proto --include proto --json
    """
    before, after, changes = _read_and_compare(old, new, role, strict, include)
    if json:
        output.print_json(_comparison_data(before, after, changes))
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
            "--old-version", metavar="VERSION", help="The version of OLD. Default: from the file."
        ),
    ] = None,
    new_version: Annotated[
        str | None,
        typer.Option(
            "--new-version", metavar="VERSION", help="The version of NEW. Default: from the file."
        ),
    ] = None,
    guide: Annotated[
        Path | None,
        typer.Option(
            "--guide",
            metavar="FILE",
            help="The migration guide. A breaking major version requires it.",
        ),
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice",
            metavar="VERSION",
            help="The version that announced the break, at least two releases ago.",
        ),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release", metavar="VERSION", help="A published version. Repeat it for each."
        ),
    ] = None,
    role: RoleOption = None,
    strict: StrictOption = None,
    include: IncludeOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether a new version of a contract may be released under its version number.

    \b
    A breaking change requires
      a new major version,
      a migration guide that names both versions, and
      a deprecation notice that is two releases old (patches do not count).
    An addition requires a new minor version.

    \b
    Exit codes:
      0  allowed, possibly with a warning
      1  not allowed, for example: Breaking changes detected without major version bump
      2  invalid usage
      3  a file cannot be read, or is not a contract

    \b
    Examples:
      interlock contracts check old.json new.json --old-version 1.4.0 --new-version 1.5.0
      interlock contracts check v1/TOOL.md v2/TOOL.md --guide docs/1-to-2.md --notice 1.3.0
    """
    from interlock.contracts.diff.verdict import check_release
    from interlock.errors import InterlockError

    before, after, changes = _read_and_compare(old, new, role, strict, include)
    try:
        verdict = check_release(
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
            {**_comparison_data(before, after, changes), "verdict": _verdict_data(verdict)}
        )
    else:
        _print_changes(changes)
        _print_verdict(verdict)
    if not verdict.passed:
        raise typer.Exit(output.FAILED)


def _read_and_compare(
    old: Path, new: Path, role: str | None, strict: bool | None, include: Sequence[Path] | None
) -> tuple[ContractFile, ContractFile, list[SchemaChange]]:

    before = read_contract_file(old, include or ())
    after = read_contract_file(new, include or ())
    if role is not None and before.kind != SCHEMA:
        raise typer.BadParameter(
            f"--role applies to a plain JSON Schema, but {old} is a {before.kind}, which declares "
            "its own input and output. Remove --role."
        )
    return before, after, compare(before, after, cast("Role | None", role), strict)


def _version(option_value: str | None, file: ContractFile, option: str) -> str:
    version = option_value or file.version
    if version is None:
        raise typer.BadParameter(f"{file.path} does not declare a version. Add {option}.")
    return version


# -- output for programs


def _comparison_data(
    old: ContractFile, new: ContractFile, changes: list[SchemaChange]
) -> dict[str, Any]:
    from interlock.contracts.diff.compatibility import required_bump

    return {
        "old": str(old.path),
        "new": str(new.path),
        "kind": old.kind,
        "compatible": not any(change.breaking for change in changes),
        "bump": str(required_bump(changes)),
        "changes": changes,
    }


def _verdict_data(verdict: ReleaseVerdict) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(verdict)
    # The report has the changes already.
    del data["changes"]
    return data


# -- output for people


def _print_changes(changes: Sequence[SchemaChange]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not changes:
        return
    rows = [
        (
            _BREAKING_LABEL if change.breaking else _COMPATIBLE_LABEL,
            str(change.reason),
            output.sanitize(change.path or "/"),
            output.sanitize(change.message),
        )
        for change in changes
    ]
    console = output.create_console()
    if not console.is_terminal:
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print("  ".join((*cells, row[3])))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", "class", "path", "what changed"):
        table.add_column(title, no_wrap=title in ("", "class"), overflow="fold")
    for label, reason, path, message in rows:
        style = "bold red" if label == _BREAKING_LABEL else "green"
        table.add_row(Text(label, style), reason, Text(path, "bold"), Text(message))
    console.print(table)


def _summary(changes: Sequence[SchemaChange], version: str | None) -> str:
    from interlock.contracts.diff.compatibility import next_version, required_bump

    if not changes:
        return "no changes."
    breaking = sum(change.breaking for change in changes)
    total = format_count(len(changes), "change")
    outcome = f"{breaking} breaking" if breaking else "all compatible"
    requirement = f"requires a new {required_bump(changes)} version"
    if version is not None:
        requirement += f": {version} → {next_version(version, changes)}"
    return f"{total}, {outcome}; {requirement}."


def _print_verdict(verdict: ReleaseVerdict) -> None:
    versions = f"{verdict.old_version} → {verdict.new_version}"
    if verdict.passed:
        output.print_note(f"{versions} may be released. {verdict.headline}")
    else:
        # The headline of compatible changes is not the reason of the rejection: the problems are.
        has_breaking = any(change.breaking for change in verdict.changes)
        output.print_problem(
            f"{versions} must not be released. {verdict.headline if has_breaking else ''}".rstrip()
        )
    for warning in verdict.warnings:
        output.print_note(f"  warning: {output.sanitize(warning)}")
    for problem in verdict.problems:
        output.print_note(f"  {output.sanitize(problem)}")
    if not verdict.passed and verdict.bump == "major":
        output.print_note(f"  The lowest version for these changes: {verdict.lowest}.")
