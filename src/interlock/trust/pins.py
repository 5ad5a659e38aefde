"""Pins: hold a tool whose contract changed since an operator accepted it.

A pinned tool with another digest is in no list, so that no model reads its new text, and cannot be
called until an operator accepts the change. All of that is decided when the lists of an upstream
arrive, before a caller sees them. A call costs one lookup among the held tools, if there are any.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from interlock.core.call import Call
from interlock.core.catalog.catalog import Catalog, Review
from interlock.core.catalog.offering import Offering, Tool
from interlock.core.catalog.tool_contracts import (
    contract_digest,
    encode_contract,
    find_changed_members,
)
from interlock.core.config.trust import PinMode
from interlock.errors import TOOL_HELD, InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.trust.policy.decision import Decision

FIRST_SEEN: Final = "first seen"
"""The author of a pin that no person has reviewed."""
_MAX_LOGGED_TOOLS: Final = 10

_log = logging.getLogger("interlock.pipeline")


class PinStorage(Protocol):
    """The storage of pins. No method may block."""

    def digests(self) -> dict[str, str]: ...

    def seen_digests(self) -> dict[str, str]: ...

    def definition(self, tool: str) -> bytes | None: ...

    def store_pin(self, tool: str, digest: str, definition: bytes, by: str) -> None: ...

    def record_seen(self, tool: str, digest: str, definition: bytes) -> None: ...

    def remove_seen(self, tool: str) -> None: ...


class HeldTool:
    """A tool that is held, and what changed."""

    __slots__ = ("_changed_members", "_current", "_read_accepted", "digest", "pinned", "tool")

    def __init__(
        self,
        tool: str,
        pinned: str,
        digest: str,
        current: bytes,
        read_accepted: Callable[[], bytes | None],
    ) -> None:
        """Args:
        pinned: the digest of the accepted contract.
        digest: the digest of the current contract.
        current: the current contract.
        read_accepted: returns the accepted contract. None: it cannot be read now.
        """
        self.tool = tool
        self.pinned = pinned
        self.digest = digest
        self._current = current
        self._read_accepted = read_accepted
        self._changed_members: tuple[str, ...] = ()

    @property
    def changed_members(self) -> tuple[str, ...]:
        """The parts of the definition that changed. Empty: unknown."""
        if not self._changed_members:
            accepted_definition = self._read_accepted()
            if accepted_definition is not None:
                self._changed_members = find_changed_members(accepted_definition, self._current)
        return self._changed_members

    @property
    def message(self) -> str:
        """Return what happened and what to do, without any text of the server."""
        parts = " and ".join(self.changed_members) if self.changed_members else "definition"
        return (
            f"{self.tool} is held: its {parts} changed since a person accepted it. It cannot be "
            f"called until a person accepts the change. Show it: `interlock pins diff {self.tool}`."
            f" Accept it: `interlock pins accept {self.tool}`."
        )


class Pins:
    """The pins of a node, and the tools of the catalog that are held."""

    def __init__(
        self,
        catalog: Catalog,
        store: PinStorage,
        mode: PinMode,
        *,
        on_held: Callable[[HeldTool], None] | None = None,
    ) -> None:
        """Args:
        on_held: called with each newly held tool.
        """
        self._catalog = catalog
        self._store = store
        self._mode: PinMode = mode
        self._on_held = on_held
        self._pinned = store.digests()
        self._seen_digests = store.seen_digests()
        """The digests of the stored contracts of held tools, by tool."""
        self._reported: dict[str, str] = {}
        """The digests that were reported as held, by tool: each is reported once."""
        self._held_by_upstream: dict[str, list[Tool]] = {}
        """Also of upstreams that no longer offer anything."""
        self.held_tools: dict[Any, HeldTool] = {}
        """By the tool object to which calls are routed. This dictionary is never replaced, so a
        step can test whether it is empty."""
        self.additional_review: Review = lambda _: frozenset()
        """Withholds further tools of an offering."""
        catalog.review = self._review_offering
        self._review_all()

    # -- Calls

    def reject_held(self, call: Call, decision: Decision) -> Decision:
        """Decision step. Raises InterlockError when the tool of the call is held."""
        held_tool = self.held_tools.get(call.route)
        if held_tool is not None:
            raise InterlockError(
                TOOL_HELD,
                held_tool.message,
                {
                    "tool": held_tool.tool,
                    "changed": list(held_tool.changed_members),
                    "pinned": held_tool.pinned,
                    "digest": held_tool.digest,
                },
            )
        return decision

    def on_approved_tool(self, tool: Tool, by: str) -> None:
        """Pin a tool after a person approved a call of it."""
        if self._mode != "off" and tool.upstream and tool.canonical not in self._pinned:
            self._pin(tool, by)

    # -- Offerings

    def review(self, offering: Offering) -> frozenset[str]:
        """Pin and check the tools of a new offering, and return the names of the held ones."""
        before = self._catalog.offering(offering.upstream)
        if before is not None and before is not offering:
            _carry_over(before, offering, self._pinned)
        for tool in self._held_by_upstream.pop(offering.upstream, ()):
            del self.held_tools[tool]
        # The node's own tools change with its version.
        if self._mode == "off" or offering.upstream in ("", BUILTIN_KEY):
            return frozenset()
        held_tools: list[Tool] = []
        new_names: list[str] = []
        for tool in offering.tools:
            name = tool.canonical
            pinned = self._pinned.get(name)
            if pinned is None:
                if self._mode == "first_seen":
                    self._pin(tool, FIRST_SEEN)
            elif contract_digest(tool) != pinned:
                held_tools.append(tool)
                if self._hold_tool(tool, pinned):
                    new_names.append(name)
            elif self._seen_digests.pop(name, None) is not None:
                # The accepted contract is back.
                self._reported.pop(name, None)
                self._store.remove_seen(name)
        if held_tools:
            self._held_by_upstream[offering.upstream] = held_tools
        if new_names:
            _log.warning(
                "upstream %s: %s changed since a person accepted them and cannot be called: %s%s. "
                "List them: `interlock pins list --held`. "
                "Show a change: `interlock pins diff TOOL`.",
                offering.upstream,
                "1 tool" if len(new_names) == 1 else f"{len(new_names)} tools",
                ", ".join(new_names[:_MAX_LOGGED_TOOLS]),
                " and others" if len(new_names) > _MAX_LOGGED_TOOLS else "",
            )
        return frozenset(tool.canonical for tool in held_tools)

    def _hold_tool(self, tool: Tool, pinned: str) -> bool:
        """Hold a tool. Return whether that is new."""
        name, digest, current = tool.canonical, contract_digest(tool), encode_contract(tool)
        store = self._store
        held_tool = HeldTool(name, pinned, digest, current, lambda: store.definition(name))
        self.held_tools[tool] = held_tool
        if self._seen_digests.get(name) != digest:
            self._seen_digests[name] = digest
            store.record_seen(name, digest, current)
        if self._reported.get(name) == digest:
            return False
        self._reported[name] = digest
        if self._on_held is not None:
            self._on_held(held_tool)
        return True

    def _pin(self, tool: Tool, by: str) -> None:
        definition = encode_contract(tool)
        tool.digest = digest = hashlib.sha256(definition).hexdigest()
        self._pinned[tool.canonical] = digest
        self._store.store_pin(tool.canonical, digest, definition, by)

    # -- Changes

    def configure(self, mode: PinMode) -> None:
        """Change the mode. Existing pins stay."""
        if mode != self._mode:
            self._mode = mode
            self._review_all()

    def apply_changes(self, pins: Mapping[str, str | None], requested: Sequence[str] = ()) -> None:
        """Apply pins that another process changed, and store the contracts of requested tools.

        Args:
            pins: new digests by tool. None: the tool is no longer pinned.
            requested: tools whose current contracts somebody wants to see.
        """
        for name, digest in pins.items():
            if digest is None:
                self._pinned.pop(name, None)
                self._seen_digests.pop(name, None)
                self._reported.pop(name, None)
            else:
                self._pinned[name] = digest
        if pins:
            self._review_all()
        for name in requested:
            tool = self._catalog.find(name)
            if tool is not None and tool.upstream and tool.canonical == name:
                self._seen_digests[name] = contract_digest(tool)
                self._store.record_seen(name, contract_digest(tool), encode_contract(tool))

    def _review_all(self) -> None:
        for offering in self._catalog.offerings:
            self._catalog.hide_tools(offering.upstream, self._review_offering(offering))

    def _review_offering(self, offering: Offering) -> frozenset[str]:
        # Pins come first: the additional review may only withhold more.
        return self.review(offering) | self.additional_review(offering)


def _carry_over(before: Offering, offering: Offering, pinned: Mapping[str, str]) -> None:
    """Copy the digests of tools that did not change, because computing them is expensive."""
    digested = {tool.canonical: tool for tool in before.tools if tool.digest}
    for tool in offering.tools if digested and pinned else ():
        old = digested.get(tool.canonical)
        if (
            old is not None
            and old.listed == tool.listed
            and old.upstream_members == tool.upstream_members
            and old.upstream_name == tool.upstream_name
        ):
            tool.digest = old.digest
