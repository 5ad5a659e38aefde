"""The status of a node: its own fields and the fields of its features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from interlock.core.upstreams.registry import UpstreamStatus

Part = TypeVar("Part", bound=msgspec.Struct)


class NodeStatus(msgspec.Struct, frozen=True):
    """The current status of a node."""

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
    """Tools that changed since a person accepted them."""
    waiting: int = 0
    """Number of calls that wait for an approval."""
    policy: str = ""
    """The version of the current policy. Nodes with the same rules have the same version."""
    problems: list[str] = []
    """Problems with the node's own files, and with the token issuers that it trusts."""


class StatusReport:
    """The status of a node with the parts of its features. In JSON all fields are in one object.

    A part is a struct of a feature. All its fields have defaults.
    """

    def __init__(self, node: NodeStatus, parts: dict[type[msgspec.Struct], msgspec.Struct]) -> None:
        self.node = node
        self._parts = parts
        self._document: dict[str, Any] = {}

    @classmethod
    def read(cls, body: bytes) -> StatusReport:
        """Read the status that a node wrote. Raises msgspec.ValidationError."""
        document = msgspec.json.decode(body, type=dict[str, Any])
        report = cls(msgspec.convert(document, NodeStatus), {})
        report._document = document
        return report

    def part(self, kind: type[Part]) -> Part:
        """Return the part of a feature, with default values if the node lacks the feature."""
        part = self._parts.get(kind)
        if part is None:
            # Fields of the node itself, and of other features, are ignored.
            part = msgspec.convert(self._document, kind)
            self._parts[kind] = part
        assert isinstance(part, kind)
        return part

    def document(self) -> dict[str, Any]:
        """Return all fields, as they are written in JSON."""
        return self._document or dict(self._fields())

    def _fields(self) -> Iterator[tuple[str, Any]]:
        for part in (self.node, *self._parts.values()):
            yield from msgspec.to_builtins(part).items()
