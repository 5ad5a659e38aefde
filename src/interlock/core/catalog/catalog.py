"""The board on which upstreams post what they offer, and from which callers read.

A change marks the snapshot stale; the next reader gets a new one, made whole. So fifty upstreams
that come up at once cost one merge, and a change in one upstream touches that one's part only.
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
"""Templates count as resources."""

# Operations of the node's own are no tools: only the AQL stage lists and calls them. And what has
# ended is there for those only who still call it.
_UNLISTED: Final = frozenset({BUILTIN_KEY, ENDED_CONTRACTS})

Changed = Callable[[frozenset[str]], None]
"""Is told which kinds of lists are new ones."""
Review = Callable[[Offering], frozenset[str]]
"""Takes what an upstream is about to offer; says which of its tools, by their canonical names, are
not to be listed."""


class Catalog:
    """The merged namespace of all upstreams."""

    def __init__(self, *, server_info: bytes, page_size: int = 0) -> None:
        self._server_info = server_info
        self._page_size = page_size
        # Cursors are sealed with a key of this process: they need not outlive it.
        self._key = os.urandom(32)
        self._offerings: dict[str, Offering] = {}
        self._withheld: dict[str, frozenset[str]] = {}
        self._expected: dict[str, str] = {}
        self._listeners: list[Changed] = []
        self._number = 0
        self._told: dict[str, str] = {}
        self._snapshot: Snapshot | None = None
        self.collides = False
        """Whether clients see any URI in another form than its upstream. For those who ask with
        every call; it is as old as the newest snapshot."""
        self.by_name: Mapping[str, Tool] = {}
        """What names mean now, in any of the forms that are accepted. Empty from a change on until
        somebody asks `find`; for those who ask with every call."""
        self.review: Review | None = None
        """Asked before anything new is on the board: what it withholds was never listed."""

    @property
    def current(self) -> Snapshot:
        """The snapshot of now."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self._snapshot = Snapshot(
                self._number,
                self._offerings.values(),
                page_size=self._page_size,
                server_info=self._server_info,
                key=self._key,
                withheld=self._withheld,
                expected={
                    key: prefix
                    for key, prefix in self._expected.items()
                    if key not in self._offerings
                },
            )
            self._tell_overshadowed(snapshot)
            self.collides = snapshot.collides
            self.by_name = snapshot.by_name
        return snapshot

    def _tell_overshadowed(self, snapshot: Snapshot) -> None:
        """Once for each: what somebody wrote down is not offered."""
        told = {one.upstream_name: why for one, why in snapshot.overshadowed()}
        for name, why in told.items():
            if self._told.get(name) != why:
                _log.warning("the contract %s is not offered: %s", name, why)
        self._told = told

    def find(self, name: str) -> Tool | None:
        """The tool that `name` means now, in any of the forms that are accepted."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self.current
        return snapshot.by_name.get(name)

    def offering(self, upstream: str) -> Offering | None:
        """What `upstream` offers now; None when it is not on the board."""
        return self._offerings.get(upstream)

    @property
    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is on the board."""
        return tuple(self._offerings.values())

    def post(self, offering: Offering) -> None:
        """An upstream offers something new in place of what it offered."""
        before = self._offerings.get(offering.upstream)
        withheld = frozenset[str]() if self.review is None else self.review(offering)
        self._offerings[offering.upstream] = offering
        # The same lists again, as after most reconnects, are no news to anybody.
        differences = _differences(before or Offering(offering.upstream, ""), offering)
        if before is None:
            differences |= self._let_loose_by(offering.upstream)
        self._changed(differences | self._keep_back(offering.upstream, withheld))

    def withhold(self, upstream: str, tools: frozenset[str]) -> None:
        """Leave these of its tools, by canonical name, out of all lists, and no others. A call of
        one still finds it, so that its caller can be told why."""
        kinds = self._keep_back(upstream, tools)
        if kinds:
            self._changed(kinds)

    def _keep_back(self, upstream: str, tools: frozenset[str]) -> frozenset[str]:
        if upstream in _UNLISTED:
            offering = self._offerings.get(upstream)
            tools = frozenset(tool.canonical for tool in offering.tools) if offering else tools
        if tools == self._withheld.get(upstream, frozenset()):
            return frozenset()
        self._withheld.pop(upstream, None)
        if tools:
            self._withheld[upstream] = tools
        return frozenset({TOOLS})

    def withdraw(self, upstream: str) -> None:
        """An upstream offers nothing any more."""
        gone = self._offerings.pop(upstream, None)
        self._withheld.pop(upstream, None)
        if gone is not None:
            differences = _differences(gone, Offering(upstream, ""))
            self._changed(differences | self._let_loose_by(upstream))

    def expect(self, upstream: str, prefix: str) -> None:
        """A server of the config is to come, or to come back. Until it is there, no contract gets a
        name that begins like its own; `prefix`: how they do, empty where nothing stands before
        them."""
        if self._expected.get(upstream) != prefix:
            self._expected[upstream] = prefix
            self._changed(self._let_loose_by(upstream))

    def expect_no_more(self, upstream: str) -> None:
        """A server is not part of the config any more."""
        kinds = self._let_loose_by(upstream)
        if self._expected.pop(upstream, None) is not None:
            self._changed(kinds)

    def _let_loose_by(self, upstream: str) -> frozenset[str]:
        """What changes for contracts when an expected server comes or goes."""
        contracts = upstream in self._expected and CONTRACTS in self._offerings
        return frozenset({TOOLS} if contracts else ())

    def configure(self, *, page_size: int) -> None:
        """Apply node settings that may change while it runs."""
        if page_size != self._page_size:
            self._page_size = page_size
            self._forget()

    def on_change(self, listener: Changed) -> Callable[[], None]:
        """Call `listener` after every change. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def _forget(self) -> None:
        """The snapshot is not that of now any more."""
        self._snapshot = None
        self.by_name = {}

    def _changed(self, kinds: frozenset[str]) -> None:
        self._forget()
        if not kinds:
            return
        self._number += 1
        for listener in tuple(self._listeners):
            listener(kinds)


def _differences(one: Offering, other: Offering) -> frozenset[str]:
    """The kinds of which some client, whatever it sees of the two, sees something else."""
    different = set()
    if not _tools_read_alike(one.tools, other.tools):
        different.add(TOOLS)
    if not _read_alike(one.prompts, other.prompts):
        different.add(PROMPTS)
    segments_shown = any(each.resources or each.templates or each.skills for each in (one, other))
    if segments_shown and (
        (one.segment, one.transparent) != (other.segment, other.transparent)
        or not _uris_read_alike(one.resources, other.resources)
        or not _uris_read_alike(one.templates, other.templates)
        or not _uris_read_alike(one.skills, other.skills)
    ):
        different.add(RESOURCES)
    return frozenset(different)


def _tools_read_alike(some: Sequence[Tool], others: Sequence[Tool]) -> bool:
    return _read_alike(some, others) and all(
        a.effect == b.effect for a, b in zip(some, others, strict=True)
    )


def _read_alike(some: Sequence[ListedEntry], others: Sequence[ListedEntry]) -> bool:
    return len(some) == len(others) and all(
        a.canonical == b.canonical
        and a.safe_name == b.safe_name
        and a.transparent_name == b.transparent_name
        and a.listed == b.listed
        for a, b in zip(some, others, strict=True)
    )


def _uris_read_alike(some: Sequence[Resource | Skill], others: Sequence[Resource | Skill]) -> bool:
    return len(some) == len(others) and all(
        a.uri == b.uri and a.listed == b.listed for a, b in zip(some, others, strict=True)
    )
