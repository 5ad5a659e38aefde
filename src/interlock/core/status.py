"""The status of a node: its own fields, and those that features add beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from interlock.core.upstreams.registry import UpstreamStatus

Part = TypeVar("Part", bound=msgspec.Struct)


class NodeStatus(msgspec.Struct, frozen=True):
    """The status of a node, as it is now."""

    version: str
    pid: int
    url: str | None
    uptime: float
    upstreams: list[UpstreamStatus]
    tools: int
    calls: int
    failed: int
    sessions: int
    listeners: int
    under_way: int
    tasks: int
    journal: dict[str, Any] | None
    held: list[str] = []
    """Tools that changed since a human accepted them."""
    waiting: int = 0
    """Calls that wait for a human."""
    policy: str = ""
    """The version of the policy in force: two nodes with the same rules have the same."""
    problems: list[str] = []
    """What is wrong with the node's own files, and with those whose tokens it believes."""


class StatusReport:
    """The status of a node with the parts of its features. In JSON all fields stand side by side.

    A part is a struct of a feature whose fields all have defaults.
    """

    def __init__(self, node: NodeStatus, parts: dict[type[msgspec.Struct], msgspec.Struct]) -> None:
        self.node = node
        self._parts = parts
        self._document: dict[str, Any] = {}

    @classmethod
    def read(cls, body: bytes) -> StatusReport:
        """The status that a node wrote. Raises msgspec.ValidationError."""
        document = msgspec.json.decode(body, type=dict[str, Any])
        report = cls(msgspec.convert(document, NodeStatus), {})
        report._document = document
        return report

    def part(self, kind: type[Part]) -> Part:
        """What a feature added. Its defaults, if the node is without the feature."""
        found = self._parts.get(kind)
        if found is None:
            # Fields of the node itself, and of other features, are left out.
            found = msgspec.convert(self._document, kind)
            self._parts[kind] = found
        assert isinstance(found, kind)
        return found

    def document(self) -> dict[str, Any]:
        """All fields, as they are written in JSON."""
        return self._document or dict(self._fields())

    def _fields(self) -> Iterator[tuple[str, Any]]:
        for one in (self.node, *self._parts.values()):
            yield from msgspec.to_builtins(one).items()
