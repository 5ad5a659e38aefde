"""Is the tool still what a human accepted? One whose contract changed since then is held.

A pinned tool whose digest is another one is in no list, so that no model reads what its server says
now, and is not called, until a human accepts the change. Everything is decided when an upstream's
lists come in, before anybody sees them; a call costs one look at what is held, if anything is.
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
"""Who accepted a tool that nobody has looked at."""
_MOST_NAMED: Final = 10

_log = logging.getLogger("interlock.pipeline")


class PinStorage(Protocol):
    """Where pins are kept. Nothing here may wait."""

    def digests(self) -> dict[str, str]: ...

    def seen_digests(self) -> dict[str, str]: ...

    def definition(self, tool: str) -> bytes | None: ...

    def keep(self, tool: str, digest: str, definition: bytes, by: str) -> None: ...

    def record_seen(self, tool: str, digest: str, definition: bytes) -> None: ...

    def remove_seen(self, tool: str) -> None: ...


class HeldTool:
    """A tool that is held, and why."""

    __slots__ = ("_accepted", "_changed", "_contract", "digest", "pinned", "tool")

    def __init__(
        self, tool: str, pinned: str, digest: str, now: bytes, accepted: Callable[[], bytes | None]
    ) -> None:
        """`accepted` reads the contract that was; None: it cannot be read now."""
        self.tool = tool
        self.pinned = pinned
        self.digest = digest
        self._contract = now
        self._accepted = accepted
        self._changed: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """Which parts of its definition are others now, as far as that can be said."""
        if not self._changed:
            accepted = self._accepted()
            if accepted is not None:
                self._changed = find_changed_members(accepted, self._contract)
        return self._changed

    @property
    def message(self) -> str:
        """What happened and what to do, without a word of what its server says now."""
        what = " and ".join(self.changed) if self.changed else "definition"
        return (
            f"{self.tool} is held: its {what} changed since a human accepted it. Nobody can call "
            f"it until a human accepts the change: `interlock pins diff {self.tool}` shows it, "
            f"`interlock pins accept {self.tool}` accepts it."
        )


class Pins:
    """What is pinned, and which tools of the catalog are held for it."""

    def __init__(
        self,
        catalog: Catalog,
        keeper: PinStorage,
        mode: PinMode,
        *,
        on_held: Callable[[HeldTool], None] | None = None,
    ) -> None:
        """`on_held` is told of every tool that is held from now on."""
        self._catalog = catalog
        self._keeper = keeper
        self._mode: PinMode = mode
        self._on_held = on_held
        self._pinned = keeper.digests()
        self._seen = keeper.seen_digests()
        """Which contracts of held tools are written down."""
        self._told: dict[str, str] = {}
        """Which of them somebody was told of: each once."""
        self._held_of: dict[str, list[Tool]] = {}
        """By upstream, also of those that offer nothing any more."""
        self.held: dict[Any, HeldTool] = {}
        """By the very tool, as calls are routed to it. Empty: nobody need ask. Always the same
        object."""
        self.beside: Review = lambda _: frozenset()
        """Who else has a say in what is withheld."""
        catalog.review = self._reviewed
        self._review_all()

    # -- calls

    def refuse_held(self, call: Call, decision: Decision) -> Decision:
        """A decision step. Raises InterlockError when the tool of this call is held."""
        held = self.held.get(call.route)
        if held is not None:
            raise InterlockError(
                TOOL_HELD,
                held.message,
                {
                    "tool": held.tool,
                    "changed": list(held.changed),
                    "pinned": held.pinned,
                    "digest": held.digest,
                },
            )
        return decision

    def approved(self, tool: Tool, by: str) -> None:
        """A human let a call of this tool through: from now on it is to stay what it is."""
        if self._mode != "off" and tool.upstream and tool.canonical not in self._pinned:
            self._pin(tool, by)

    # -- what upstreams offer

    def review(self, offering: Offering) -> frozenset[str]:
        """Judge what an upstream is about to offer. The names of its tools that are held."""
        before = self._catalog.offering(offering.upstream)
        if before is not None and before is not offering:
            _carry_over(before, offering, self._pinned)
        for tool in self._held_of.pop(offering.upstream, ()):
            del self.held[tool]
        # The node's own tools change with the node.
        if self._mode == "off" or offering.upstream in ("", BUILTIN_KEY):
            return frozenset()
        held: list[Tool] = []
        news: list[str] = []
        for tool in offering.tools:
            name = tool.canonical
            pinned = self._pinned.get(name)
            if pinned is None:
                if self._mode == "first_seen":
                    self._pin(tool, FIRST_SEEN)
            elif contract_digest(tool) != pinned:
                held.append(tool)
                if self._hold(tool, pinned):
                    news.append(name)
            elif self._seen.pop(name, None) is not None:
                # It is again what it was.
                self._told.pop(name, None)
                self._keeper.remove_seen(name)
        if held:
            self._held_of[offering.upstream] = held
        if news:
            _log.warning(
                "%s of %s changed since a human accepted it and is held: %s%s; `interlock pins "
                "list --held` has them all, `interlock pins diff TOOL` says what changed",
                "a tool" if len(news) == 1 else f"each of {len(news)} tools",
                offering.upstream,
                ", ".join(news[:_MOST_NAMED]),
                " and others" if len(news) > _MOST_NAMED else "",
            )
        return frozenset(tool.canonical for tool in held)

    def _hold(self, tool: Tool, pinned: str) -> bool:
        """Whether nobody was told of it yet."""
        name, digest, now = tool.canonical, contract_digest(tool), encode_contract(tool)
        keeper = self._keeper
        held = HeldTool(name, pinned, digest, now, lambda: keeper.definition(name))
        self.held[tool] = held
        if self._seen.get(name) != digest:
            self._seen[name] = digest
            keeper.record_seen(name, digest, now)
        if self._told.get(name) == digest:
            return False
        self._told[name] = digest
        if self._on_held is not None:
            self._on_held(held)
        return True

    def _pin(self, tool: Tool, by: str) -> None:
        definition = encode_contract(tool)
        tool.digest = digest = hashlib.sha256(definition).hexdigest()
        self._pinned[tool.canonical] = digest
        self._keeper.keep(tool.canonical, digest, definition, by)

    # -- changes

    def configure(self, mode: PinMode) -> None:
        """Another mode while the node runs. What is pinned stays pinned."""
        if mode != self._mode:
            self._mode = mode
            self._review_all()

    def changed(self, pins: Mapping[str, str | None], wanted: Sequence[str] = ()) -> None:
        """Somebody else changed these pins, and wants to see the contracts of those tools."""
        for name, digest in pins.items():
            if digest is None:
                self._pinned.pop(name, None)
                self._seen.pop(name, None)
                self._told.pop(name, None)
            else:
                self._pinned[name] = digest
        if pins:
            self._review_all()
        for name in wanted:
            tool = self._catalog.find(name)
            if tool is not None and tool.upstream and tool.canonical == name:
                self._seen[name] = contract_digest(tool)
                self._keeper.record_seen(name, contract_digest(tool), encode_contract(tool))

    def _review_all(self) -> None:
        for offering in self._catalog.offerings:
            self._catalog.hide_tools(offering.upstream, self._reviewed(offering))

    def _reviewed(self, offering: Offering) -> frozenset[str]:
        # What is pinned comes first: others may only add to it.
        return self.review(offering) | self.beside(offering)


def _carry_over(before: Offering, offering: Offering, pinned: Mapping[str, str]) -> None:
    """Most of what is offered again reads as it did: then its digest is known."""
    known = {tool.canonical: tool for tool in before.tools if tool.digest}
    for tool in offering.tools if known and pinned else ():
        old = known.get(tool.canonical)
        if (
            old is not None
            and old.listed == tool.listed
            and old.upstream_members == tool.upstream_members
            and old.upstream_name == tool.upstream_name
        ):
            tool.digest = old.digest
