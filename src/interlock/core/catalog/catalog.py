"""The catalog: what all upstreams offer, merged for callers.

A change discards the snapshot, and the next reader builds a new one. So fifty upstreams that start
at the same time cost one merge, and a change of one upstream only affects its own part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from interlock.core.catalog.offering import (
    CONTRACTS,
    ENDED_CONTRACTS,
    ListedEntry,
    Offering,
    Resource,
    Skill,
    Tool,
)
from interlock.core.catalog.snapshot import Snapshot
from interlock.protocol.aql_terms import BUILTIN_KEY

_log = logging.getLogger("interlock.catalog")

TOOLS: Final = "tools"
PROMPTS: Final = "prompts"
RESOURCES: Final = "resources"
"""The kind of resources, templates and skills."""

# Built-in operations are not listed as tools: only the AQL stage lists and calls them. Ended
# contracts are only there for callers that still call them.
_UNLISTED_UPSTREAMS: Final = frozenset({BUILTIN_KEY, ENDED_CONTRACTS})

ChangeListener = Callable[[frozenset[str]], None]
"""Called with the kinds of lists that changed."""
Review = Callable[[Offering], frozenset[str]]
"""Called with a new offering before it is published. Returns the canonical names of its tools that
must not be listed."""


class Catalog:
    """The merged namespace of all upstreams."""

    def __init__(self, *, server_info: bytes, page_size: int = 0) -> None:
        self._server_info = server_info
        self._page_size = page_size
        # Cursors are sealed with a key of this process: they need not be valid after a restart.
        self._key = os.urandom(32)
        self._offerings: dict[str, Offering] = {}
        self._hidden: dict[str, frozenset[str]] = {}
        self._reserved_prefixes: dict[str, str] = {}
        self._listeners: list[ChangeListener] = []
        self._number = 0
        self._logged_shadowings: dict[str, str] = {}
        self._snapshot: Snapshot | None = None
        self.has_uri_collisions = False
        """True if clients see any URI in another form than its upstream. As old as the newest
        snapshot, because it is read with every call."""
        self.by_name: Mapping[str, Tool] = {}
        """Tools by all accepted forms of their names, for use with every call. Empty after a change
        until the next `find`."""
        self.review: Review | None = None
        """Reviews offerings before they are published. Tools that it hides were never listed."""

    @property
    def current(self) -> Snapshot:
        """The current snapshot."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self._snapshot = Snapshot(
                self._number,
                self._offerings.values(),
                page_size=self._page_size,
                server_info=self._server_info,
                key=self._key,
                hidden=self._hidden,
                reserved_prefixes={
                    key: prefix
                    for key, prefix in self._reserved_prefixes.items()
                    if key not in self._offerings
                },
            )
            self._log_shadowed_contracts(snapshot)
            self.has_uri_collisions = snapshot.has_uri_collisions
            self.by_name = snapshot.by_name
        return snapshot

    def _log_shadowed_contracts(self, snapshot: Snapshot) -> None:
        """Log each contract that is not offered because its name is taken, once per reason."""
        reasons = {
            contract.upstream_name: reason for contract, reason in snapshot.shadowed_contracts()
        }
        for name, reason in reasons.items():
            if self._logged_shadowings.get(name) != reason:
                _log.warning("contract %s: not offered: %s", name, reason)
        self._logged_shadowings = reasons

    def find(self, name: str) -> Tool | None:
        """Return the tool with this name, in any accepted form."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self.current
        return snapshot.by_name.get(name)

    def offering(self, upstream: str) -> Offering | None:
        """Return the current offering of an upstream, if it has one."""
        return self._offerings.get(upstream)

    @property
    def offerings(self) -> tuple[Offering, ...]:
        """All current offerings."""
        return tuple(self._offerings.values())

    def publish(self, offering: Offering) -> None:
        """Replace the offering of an upstream."""
        previous = self._offerings.get(offering.upstream)
        hidden = frozenset[str]() if self.review is None else self.review(offering)
        self._offerings[offering.upstream] = offering
        # Lists that did not change, as after most reconnects, are not announced.
        differences = _differences(previous or Offering(offering.upstream, ""), offering)
        if previous is None:
            differences |= self._kinds_of_contracts(offering.upstream)
        self._notify_listeners(differences | self._set_hidden(offering.upstream, hidden))

    def hide_tools(self, upstream: str, tools: frozenset[str]) -> None:
        """Hide exactly these tools of an upstream, by canonical name, from all lists. A call still
        finds them, so that the caller is told the reason."""
        kinds = self._set_hidden(upstream, tools)
        if kinds:
            self._notify_listeners(kinds)

    def _set_hidden(self, upstream: str, tools: frozenset[str]) -> frozenset[str]:
        if upstream in _UNLISTED_UPSTREAMS:
            offering = self._offerings.get(upstream)
            tools = frozenset(tool.canonical for tool in offering.tools) if offering else tools
        if tools == self._hidden.get(upstream, frozenset()):
            return frozenset()
        self._hidden.pop(upstream, None)
        if tools:
            self._hidden[upstream] = tools
        return frozenset({TOOLS})

    def withdraw(self, upstream: str) -> None:
        """Remove the offering of an upstream."""
        offering = self._offerings.pop(upstream, None)
        self._hidden.pop(upstream, None)
        if offering is not None:
            differences = _differences(offering, Offering(upstream, ""))
            self._notify_listeners(differences | self._kinds_of_contracts(upstream))

    def reserve_names(self, upstream: str, prefix: str) -> None:
        """Reserve the names of a configured server that is not connected yet.

        Args:
            prefix: the prefix of its tools' names, empty if they have none. Until the server offers
                its tools, no contract gets a name with this prefix.
        """
        if self._reserved_prefixes.get(upstream) != prefix:
            self._reserved_prefixes[upstream] = prefix
            self._notify_listeners(self._kinds_of_contracts(upstream))

    def release_names(self, upstream: str) -> None:
        """Release the reserved names of a server that is no longer configured."""
        kinds = self._kinds_of_contracts(upstream)
        if self._reserved_prefixes.pop(upstream, None) is not None:
            self._notify_listeners(kinds)

    def _kinds_of_contracts(self, upstream: str) -> frozenset[str]:
        """Return the kinds that change for contracts when a server's names are reserved or not."""
        contracts = upstream in self._reserved_prefixes and CONTRACTS in self._offerings
        return frozenset({TOOLS} if contracts else ())

    def configure(self, *, page_size: int) -> None:
        """Apply settings that may change while the node runs."""
        if page_size != self._page_size:
            self._page_size = page_size
            self._discard_snapshot()

    def on_change(self, listener: ChangeListener) -> Callable[[], None]:
        """Call `listener` after every change. Returns a function that removes it."""
        self._listeners.append(listener)

        def remove_listener() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove_listener

    def _discard_snapshot(self) -> None:
        """Discard the snapshot because it is outdated."""
        self._snapshot = None
        self.by_name = {}

    def _notify_listeners(self, kinds: frozenset[str]) -> None:
        self._discard_snapshot()
        if not kinds:
            return
        self._number += 1
        for listener in tuple(self._listeners):
            listener(kinds)


def _differences(old: Offering, new: Offering) -> frozenset[str]:
    """Return the kinds of lists that differ for at least one client."""
    kinds = set()
    if not _are_tools_equal(old.tools, new.tools):
        kinds.add(TOOLS)
    if not _are_entries_equal(old.prompts, new.prompts):
        kinds.add(PROMPTS)
    has_uris = any(
        offering.resources or offering.templates or offering.skills for offering in (old, new)
    )
    if has_uris and (
        (old.segment, old.is_transparent) != (new.segment, new.is_transparent)
        or not _are_uris_equal(old.resources, new.resources)
        or not _are_uris_equal(old.templates, new.templates)
        or not _are_uris_equal(old.skills, new.skills)
    ):
        kinds.add(RESOURCES)
    return frozenset(kinds)


def _are_tools_equal(old: Sequence[Tool], new: Sequence[Tool]) -> bool:
    return _are_entries_equal(old, new) and all(
        a.effect == b.effect for a, b in zip(old, new, strict=True)
    )


def _are_entries_equal(old: Sequence[ListedEntry], new: Sequence[ListedEntry]) -> bool:
    return len(old) == len(new) and all(
        a.canonical == b.canonical
        and a.safe_name == b.safe_name
        and a.transparent_name == b.transparent_name
        and a.listed == b.listed
        for a, b in zip(old, new, strict=True)
    )


def _are_uris_equal(old: Sequence[Resource | Skill], new: Sequence[Resource | Skill]) -> bool:
    return len(old) == len(new) and all(
        a.uri == b.uri and a.listed == b.listed for a, b in zip(old, new, strict=True)
    )
