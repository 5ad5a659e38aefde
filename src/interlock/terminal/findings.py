"""What `interlock doctor` found out about a node and its upstreams."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """Something about the node itself."""

    what: str
    ok: bool
    message: str


class Diagnosis(Struct, frozen=True):
    """What was found out about one upstream."""

    key: str
    ok: bool
    seconds: float
    """How long it took to get ready and to list its tools."""
    era: str = ""
    revision: str = ""
    server: str = ""
    """Who it says it is."""
    tools: int = 0
    set_aside: list[dict[str, str]] = []
    """Tools that are not shown, and why."""
    noise: int = 0
    """Lines on its stdout that are not MCP."""
    problem: str = ""
    advice: list[str] = []
    stderr: list[str] = []
    """Its last lines, when it failed."""
    assumed: list[str] = []
    """What was assumed of its tools that have no annotations."""
    warnings: list[str] = []
    """Names in the config that match none of its tools."""
    registered: bool = False
    """Whether it dialled in to a running node, which is what was asked: it was not tried."""
