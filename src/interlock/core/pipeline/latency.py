"""Latency of tools: checks the declared latency class, and writes the latency into results.

Only tools that declare a latency class are measured. A slower class is reported to the catalog.
A class never gets faster.
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
"""Fewer calls than this are not evaluated."""
MAX_SAMPLES: Final = 100
TOLERATED_ONE_IN: Final = 20
"""One of this many calls may be slower than its class."""
_RANK: Final = {name: rank for rank, name in enumerate(LATENCY_CLASSES)}
_MAX_TOOLS: Final = 20_000


class _Record:
    """The latency of the last calls of a tool, as the rank of the matching latency class."""

    __slots__ = ("first", "latest", "rank")

    def __init__(self, rank: int) -> None:
        self.first = self.rank = rank
        self.latest: deque[int] = deque(maxlen=MAX_SAMPLES)


class LatencyMeasures(CallObserver):
    """Measures the latency of tools that declare a latency class."""

    declared_latency_only = True

    def __init__(self, on_slower: Callable[[str, str, str], None] | None = None) -> None:
        self.on_slower = on_slower
        """Called with the upstream, the tool name at the upstream, and the measured class."""
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
        """Measure a call, unless it only collected an earlier result."""
        if outcome_name != COLLECTED:
            self.measure(call, duration_us / 1e6, error)

    def measure(self, call: Call, seconds: float, error: InterlockError | None) -> None:
        """Record the latency of a call."""
        tool = call.route
        if not isinstance(tool, Tool) or tool.latency_class is None or call.input_rounds:
            return
        has_expired = (
            error is not None and error.failure is DEADLINE_EXCEEDED and not call.has_caller_timeout
        )
        if error is not None and not has_expired:
            return
        record = self._record(tool, _RANK[tool.latency_class])
        if record is None:
            return
        rank = _RANK[latency_class_for(seconds)]
        if has_expired:
            # The route may be slow. Or the tool hangs, and a longer timeout does not help.
            rank = min(max(rank, record.rank), record.first + 1, len(LATENCY_CLASSES) - 2)
        latest = record.latest
        latest.append(rank)
        if rank > record.rank and len(latest) >= MIN_SAMPLES:
            # The rank that all but the tolerated calls reach.
            measured_rank = sorted(latest)[-1 - len(latest) // TOLERATED_ONE_IN]
            if measured_rank > record.rank:
                record.rank = measured_rank
                latest.clear()
                if self.on_slower is not None:
                    measured_class = LATENCY_CLASSES[measured_rank]
                    self.on_slower(tool.upstream, tool.upstream_name, measured_class)

    def remove_upstream(self, upstream: str) -> None:
        """Remove the measurements of an upstream that was removed or changed."""
        self._tools -= len(self._records.pop(upstream, {}))

    def _record(self, tool: Tool, rank: int) -> _Record | None:
        records = self._records.setdefault(tool.upstream, {})
        record = records.get(tool.upstream_name)
        if record is None:
            if self._tools >= _MAX_TOOLS:
                return None
            self._tools += 1
            record = records[tool.upstream_name] = _Record(rank)
        record.rank = max(record.rank, rank)
        return record


def add_latency(outcome: Outcome, seconds: float) -> Outcome:
    """Return the outcome with the latency in its `_meta`. All other bytes are unchanged.

    A result with an invalid `_meta` is not changed.
    """
    glance, raw = outcome.summary, outcome.result
    latency = Raw(b"%.3f" % (ceil(seconds * 1e6) / 1e3))
    if glance is None or raw[:1] != b"{" or raw[-1:] != b"}":
        return outcome
    if glance.meta is UNSET:
        meta = encode_members({LATENCY_MS: latency})
        comma = b"," if raw[1:-1].strip() else b""
        result = b'%b%b"_meta":%b}' % (raw[:-1], comma, meta)
    else:
        old_meta = bytes(glance.meta)
        try:
            meta = encode_members({**decode_members(old_meta), LATENCY_MS: latency})
            if raw.count(old_meta) == 1:
                result = raw.replace(old_meta, meta)
            else:
                result = encode_members({**decode_members(raw), "_meta": Raw(meta)})
        except ProtocolError:
            return outcome
    return Outcome(result, outcome.era, msgspec.structs.replace(glance, meta=Raw(meta)))
