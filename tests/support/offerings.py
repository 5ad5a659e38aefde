"""Offerings of upstreams for tests, and what a client sees of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from interlock.core.catalog.offering import Offering, RegisteredRole, read_offering
from interlock.core.catalog.snapshot import Snapshot
from interlock.core.config import ServerConfig
from interlock.protocol.mcp import (
    PROMPTS_LIST,
    RESOURCES_LIST,
    SKILLS_LIST,
    TEMPLATES_LIST,
    TOOLS_LIST,
    Era,
)

INFO = {"name": "interlock", "version": "1"}
KEY = b"k" * 32
MEMBER = {
    SKILLS_LIST: "skills",
    TOOLS_LIST: "tools",
    PROMPTS_LIST: "prompts",
    RESOURCES_LIST: "resources",
    TEMPLATES_LIST: "resourceTemplates",
}


def definition(name: Any, **members: Any) -> bytes:
    """Return a tool as an upstream lists it."""
    return json.dumps({"name": name, "inputSchema": {"type": "object"}, **members}).encode()


def prompt(name: Any, **members: Any) -> bytes:
    """Return a prompt as an upstream lists it."""
    return json.dumps({"name": name, **members}).encode()


def resource(uri: Any, **members: Any) -> bytes:
    """Return a resource as an upstream lists it."""
    return json.dumps({"uri": uri, "name": "r", **members}).encode()


def template(uri: Any, **members: Any) -> bytes:
    """Return a template as an upstream lists it."""
    return json.dumps({"uriTemplate": uri, "name": "t", **members}).encode()


def skill(uri: Any, **members: Any) -> bytes:
    """Return a skill as an upstream lists it."""
    about = {"name": "s", "description": "d"}
    files = [{"uri": uri, "digest": "sha256:0", "size": 1}]
    return json.dumps({"uri": uri, "frontmatter": about, "resources": files, **members}).encode()


def server(**settings: Any) -> ServerConfig:
    return ServerConfig(command="some-server", **settings)


def offer(
    key: str,
    tools: Iterable[str | bytes] = (),
    *,
    prompts: Iterable[str | bytes] = (),
    resources: Iterable[str | bytes] = (),
    templates: Iterable[str | bytes] = (),
    skills: Iterable[str | bytes] = (),
    root: str | None = None,
    http: bool = False,
    serves_resources: bool = False,
    registered: RegisteredRole = "",
    degraded: bool = False,
    transport_class: str = "native",
    slower: Mapping[str, str] | None = None,
    **settings: Any,
) -> Offering:
    """Return the offering of an upstream. Each entry is a name, a URI or raw bytes."""
    settings.setdefault("segment", key)
    return read_offering(
        key,
        server(**settings),
        _raw(tools, definition),
        prompts=_raw(prompts, prompt),
        resources=_raw(resources, resource),
        templates=_raw(templates, template),
        skills=_raw(skills, skill),
        root_segment=root,
        http=http,
        serves_resources=serves_resources,
        registered=registered,
        degraded=degraded,
        transport_class=transport_class,
        slower=slower,
    )


def _raw(entries: Iterable[str | bytes], written: Callable[[str], bytes]) -> list[bytes]:
    return [written(entry) if isinstance(entry, str) else entry for entry in entries]


def merged(*offerings: Offering, page_size: int = 0) -> Snapshot:
    return Snapshot(
        1, offerings, page_size=page_size, server_info=json.dumps(INFO).encode(), key=KEY
    )


def pages(
    snapshot: Snapshot,
    style: str = "ax",
    era: Era = Era.SESSION,
    verb: str = TOOLS_LIST,
) -> list[dict[str, Any]]:
    """Return every page, as a client reads them."""
    result = [json.loads(snapshot.page(verb, era, style))]
    while "nextCursor" in result[-1]:
        assert len(result) <= 1_000, "the walk does not end"
        result.append(json.loads(snapshot.page(verb, era, style, result[-1]["nextCursor"])))
    return result


def shown(
    snapshot: Snapshot,
    style: str = "ax",
    era: Era = Era.SESSION,
    verb: str = TOOLS_LIST,
) -> list[dict[str, Any]]:
    """Return all entries of one list as a client sees them, in order."""
    return [line for page in pages(snapshot, style, era, verb) for line in page[MEMBER[verb]]]


def without_node_members(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a listed tool without the members that the node adds to its `_meta`."""
    meta = {key: value for key, value in tool["_meta"].items() if not key.startswith("x-mcpax-")}
    rest = {key: value for key, value in tool.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def list_uris(snapshot: Snapshot) -> list[str]:
    return [line["uri"] for line in shown(snapshot, verb=RESOURCES_LIST)]


def list_templates(snapshot: Snapshot) -> list[str]:
    return [line["uriTemplate"] for line in shown(snapshot, verb=TEMPLATES_LIST)]


def list_names(snapshot: Snapshot, style: str = "ax") -> list[str]:
    return [tool["name"] for tool in shown(snapshot, style)]


def reached(snapshot: Snapshot, name: str) -> tuple[str, str] | None:
    """Return the upstream of a name, and the name of the tool at that upstream."""
    tool = snapshot.resolve(name)
    return None if tool is None else (tool.upstream, tool.upstream_name)
