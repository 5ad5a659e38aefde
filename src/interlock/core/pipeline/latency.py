"""How long did it take? Whether tools keep to the latency class that they declare, and, where it is
wanted, the time in each result.

Only tools that declare a class are measured. What is found is told; the catalog decides what it
means. A class is only ever raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from interlock.core.call import Call, Outcome
from interlock.core.catalog.offering import Tool
from interlock.core.journal.audit import COLLECTED
from interlock.core.pipeline.observers import CallObserver
from interlock.errors import DEADLINE_EXCEEDED, InterlockError, ProtocolError
from interlock.protocol.capabilities import LATENCY_CLASSES, latency_class_for
from interlock.protocol.jsonrpc import decode_members, encode_members
from interlock.protocol.mcpax import LATENCY_MS

MIN_SAMPLES: Final = 20
"""Fewer calls than this say nothing."""
MAX_SAMPLES: Final = 100
TOLERATED_FRACTION: Final = 20
"""One call in so many may be slower than its class."""
_RANK: Final = {name: rank for rank, name in enumerate(LATENCY_CLASSES)}
_MOST_TOOLS: Final = 20_000


class _Record:
    """How long the last calls of a tool took: as the rank of the class that each would be in."""

    __slots__ = ("first", "latest", "rank")

    def __init__(self, rank: int) -> None:
        self.first = self.rank = rank
        self.latest: deque[int] = deque(maxlen=MAX_SAMPLES)


class LatencyMeasures(CallObserver):
    """The times of tools that say how long they take."""

    declared_latency_only = True

    def __init__(self, on_slower: Callable[[str, str, str], None] | None = None) -> None:
        self.on_slower = on_slower
        """Told the upstream, the tool's own name there, and its real class."""
        self._records: dict[str, dict[str, _Record]] = {}
        self._tools = 0

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        """A call is over. What says nothing about its tool's speed is left out."""
        if outcome_name != COLLECTED:
            self.took(call, duration_us / 1e6, error)

    def took(self, call: Call, seconds: float, error: InterlockError | None) -> None:
        """A call took so long, and ended so."""
        tool = call.route
        if not isinstance(tool, Tool) or tool.latency_class is None or call.input_rounds:
            return
        late = (
            error is not None and error.failure is DEADLINE_EXCEEDED and not call.has_caller_timeout
        )
        if error is not None and not late:
            return
        record = self._record(tool, _RANK[tool.latency_class])
        if record is None:
            return
        rank = _RANK[latency_class_for(seconds)]
        if late:
            # It may be the way that is slow; or the tool hangs, and longer waiting helps nobody.
            rank = min(max(rank, record.rank), record.first + 1, len(LATENCY_CLASSES) - 2)
        latest = record.latest
        latest.append(rank)
        if rank > record.rank and len(latest) >= MIN_SAMPLES:
            # All but one in so many are in the class of this one, or in a quicker one.
            real = sorted(latest)[-1 - len(latest) // TOLERATED_FRACTION]
            if real > record.rank:
                record.rank = real
                latest.clear()
                if self.on_slower is not None:
                    self.on_slower(tool.upstream, tool.upstream_name, LATENCY_CLASSES[real])

    def forget(self, upstream: str) -> None:
        """It comes back as another one, or not at all."""
        self._tools -= len(self._records.pop(upstream, {}))

    def _record(self, tool: Tool, rank: int) -> _Record | None:
        of_upstream = self._records.setdefault(tool.upstream, {})
        record = of_upstream.get(tool.upstream_name)
        if record is None:
            if self._tools >= _MOST_TOOLS:
                return None
            self._tools += 1
            record = of_upstream[tool.upstream_name] = _Record(rank)
        record.rank = max(record.rank, rank)
        return record


def add_latency(outcome: Outcome, seconds: float) -> Outcome:
    """The outcome, with the time that it took in its `_meta`; all else stays byte by byte.

    A result whose `_meta` is no object stays as it is.
    """
    glance, raw = outcome.glance, outcome.result
    took = Raw(b"%.3f" % (ceil(seconds * 1e6) / 1e3))
    if glance is None or raw[:1] != b"{" or raw[-1:] != b"}":
        return outcome
    if glance.meta is UNSET:
        meta = encode_members({LATENCY_MS: took})
        comma = b"," if raw[1:-1].strip() else b""
        written = b'%b%b"_meta":%b}' % (raw[:-1], comma, meta)
    else:
        said = bytes(glance.meta)
        try:
            meta = encode_members({**decode_members(said), LATENCY_MS: took})
            if raw.count(said) == 1:
                written = raw.replace(said, meta)
            else:
                written = encode_members({**decode_members(raw), "_meta": Raw(meta)})
        except ProtocolError:
            return outcome
    return Outcome(written, outcome.era, msgspec.structs.replace(glance, meta=Raw(meta)))
