"""Files that hold contracts, as `interlock contracts diff` and `check` read them.

What a file is shows from what is in it: a JSON Schema, an MCP tool, a list of tools, a TOOL.md, a
.proto file or a set of Protobuf descriptors. What cannot be read is a ConfigError with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from interlock.catalog.contracts.changes import Change, Role
from interlock.config.problems import ConfigError, Problem
from interlock.errors import InterlockError

if TYPE_CHECKING:
    from interlock.manifests.tool import ToolContract

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
) -> list[Change]:
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
        from interlock.catalog.contracts.schemas import diff_schemas

        for one in (old, new):
            _check_schema(one.path, one.content, "")
        return diff_schemas(old.content, new.content, role or "both", strict=strict)
    from interlock.catalog.contracts.tools import diff_tool_lists, diff_tools

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
    from interlock.catalog.contracts.documents import Document
    from interlock.catalog.contracts.drafts import UnreadableSchema

    try:
        Document(schema)
    except UnreadableSchema as exc:
        raise ConfigError.of(f"{place}it is no JSON Schema: {exc}", file=str(path)) from None


# -- Protobuf


def _descriptors(old: ContractFile, new: ContractFile) -> list[Change]:
    from interlock.catalog.contracts.proto import diff_descriptors
    from interlock.catalog.contracts.proto_reading import read_descriptors

    for one in (old, new):
        try:
            read_descriptors(one.content)
        except InterlockError as exc:
            raise ConfigError.of(exc.message, file=str(one.path)) from None
    return diff_descriptors(old.content, new.content)


def _compiled(path: Path, include: Sequence[Path]) -> bytes:
    from interlock.catalog.schemas.compiling import NotCompiled, protoc

    _read(path)
    folders = [folder.resolve() for folder in include] or [path.resolve().parent]
    try:
        return protoc([str(path.resolve())], folders, cwd=path.resolve().parent)
    except NotCompiled as refused:
        raise _refused(path, refused.said) from None
    except InterlockError as error:
        raise ConfigError.of(error.message, "or give a descriptor set", file=str(path)) from None


def _refused(path: Path, said: str) -> ConfigError:
    """What the compiler did not like, with the places that it names."""
    from interlock.catalog.schemas.compiling import read_said

    problems: list[Problem] = []
    for one in read_said(said):
        if one.line:
            problems.append(Problem(one.file, one.line, one.column, "", one.words, ""))
            continue
        words = f"{one.file}: {one.words}" if one.file else one.words.strip()
        hint = "give the folder of its imports with --include" if "not found" in words else ""
        problems.append(Problem(str(path), 0, 0, "", words, hint))
    return ConfigError(problems[:_MOST_LINES] or [Problem(str(path), 0, 0, "", _SILENT, "")])
