"""Deprecated fields of MCP drivers, translated: `server_ref` (a path to a server.json) and
`mcp_tools` (the server's tool → contract). The fields of AIP-32 win where both are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from interlock.config.problems import BadValue, Problem
from interlock.manifests.document import Document
from interlock.manifests.findings import Caution

DEPRECATED: Final = ("server_ref", "mcp_tools", "mcp_tool_name", "prompts_ref")
"""Names that texts about drivers use, and no schema has."""

ReadText = Callable[[str], str]
"""The text of a file that a manifest names. Raises BadValue."""


def translate(
    document: Document, read_text: ReadText | None
) -> tuple[list[Problem], list[Caution]]:
    """Puts the fields of AIP-32 in place of deprecated ones, in the document itself."""
    problems: list[Problem] = []
    cautions: list[Caution] = []
    values = document.value
    if "server_ref" in values:
        cautions.append(_deprecated(document, "server_ref", "server"))
        if "server" not in values:
            problems += _server_ref(document, read_text)
    if "mcp_tools" in values:
        cautions.append(_deprecated(document, "mcp_tools", "implements[].metadata.mcp.tool_name"))
        problems += _mcp_tools(document)
    for name in ("mcp_tool_name", "prompts_ref"):
        if name in values:
            instead = "implements[].metadata.mcp.tool_name" if "tool" in name else "prompts"
            cautions.append(
                Caution(
                    document.file,
                    document.line((name,)),
                    "unknown_field",
                    f"{name} means nothing here; use {instead}",
                )
            )
    return problems, cautions


def _deprecated(document: Document, old: str, new: str) -> Caution:
    return Caution(
        document.file, document.line((old,)), "deprecated_field", f"{old} is deprecated; use {new}"
    )


def _server_ref(document: Document, read_text: ReadText | None) -> list[Problem]:
    path = document.value["server_ref"]
    where = ("server_ref",)
    if not isinstance(path, str) or not path:
        return [document.problem(where, "expected the path of a server.json", "use server instead")]
    if read_text is None:
        return [
            document.problem(where, "no file can be read from here", "write the fields of server")
        ]
    try:
        block = server_of(msgspec.json.decode(read_text(path)))
    except BadValue as bad:
        return [document.problem(where, bad.message, bad.hint)]
    except (msgspec.DecodeError, RecursionError):
        return [document.problem(where, "the file is not JSON", "use server instead")]
    document.value = {**document.value, "server": block}
    document.moved["server"] = "server_ref"
    return []


def server_of(config: Any) -> dict[str, Any]:
    """The server block that a server.json stands for: our own, or a client's. Raises BadValue."""
    if isinstance(config, dict):
        if isinstance(config.get("mcpServers"), dict) and len(config["mcpServers"]) == 1:
            (config,) = config["mcpServers"].values()
        if isinstance(config, dict):
            if "kind" in config:
                return config
            if isinstance(config.get("url"), str):
                return {"kind": "remote", "url": config["url"]}
            if isinstance(config.get("command"), str):
                return _from_command(config)
    raise BadValue(
        "the file names no server", "write kind, command or url into it, or use server instead"
    )


def _from_command(config: dict[str, Any]) -> dict[str, Any]:
    args = config.get("args", [])
    block: dict[str, Any] = {"kind": "binary", "path": config["command"], "args": args}
    if PurePosixPath(config["command"]).name == "npx" and isinstance(args, list):
        words = [word for word in args if word not in ("-y", "--yes")]
        if words and isinstance(words[0], str):
            block = {"kind": "npm", "package": words[0], "args": words[1:]}
    if "env" in config:
        block["env"] = config["env"]
    return block


def _mcp_tools(document: Document) -> list[Problem]:
    tools, entries = document.value["mcp_tools"], document.value.get("implements")
    if not isinstance(tools, dict) or not all(isinstance(one, str) for one in tools.values()):
        return [
            document.problem(
                ("mcp_tools",), "expected names of tools with the contract of each",
                "use implements[].metadata.mcp.tool_name",
            )
        ]  # fmt: skip
    if not isinstance(entries, list):
        return []
    by_contract = {contract: tool for tool, contract in tools.items()}
    served: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("tool"), str):
            metadata = entry.get("metadata", {})
            tool = by_contract.get(_contract_of(entry["tool"]))
            if tool is not None and isinstance(metadata, dict) and "mcp" not in metadata:
                entry = {**entry, "metadata": {**metadata, "mcp": {"tool_name": tool}}}
        served.append(entry)
    document.value = {**document.value, "implements": served}
    return []


def _contract_of(tool: str) -> str:
    """The contract's id that a path stands for, as folders are named: `tools/fs-read/TOOL.md`."""
    path = PurePosixPath(tool)
    return path.parent.name if path.suffix == ".md" else tool
