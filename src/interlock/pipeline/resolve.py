"""Which tool is meant? Names in any accepted form become a route."""

from __future__ import annotations

from bisect import bisect_left
from difflib import get_close_matches
from typing import Final

from interlock.call import Call
from interlock.catalog.catalog import Catalog
from interlock.catalog.offering import Tool
from interlock.catalog.snapshot import Snapshot
from interlock.errors import UNKNOWN_TOOL, InterlockError

_MOST_COMPARED: Final = 20
"""Comparing is slow, and a caller's typo must not hold up everybody else."""
_MOST_CHARACTERS: Final = 100


def resolve(call: Call, catalog: Catalog) -> Tool:
    """The tool that the call names; the call learns its route and effect."""
    tool = catalog.find(call.name)
    if tool is None:
        raise _unknown(call.name, catalog.current)
    call.route = tool
    call.upstream = tool.upstream
    call.effect = tool.effect_word
    call.repeatable = tool.repeatable
    return tool


def _unknown(name: str, snapshot: Snapshot) -> InterlockError:
    near = _near(name[:_MOST_CHARACTERS], snapshot)
    shown = name if len(name) <= _MOST_CHARACTERS else name[:_MOST_CHARACTERS] + "…"
    hint = f" Did you mean {' or '.join(near)}?" if near else " `tools/list` has the names."
    return InterlockError(
        UNKNOWN_TOOL, f"There is no tool called {shown!r}.{hint}", {"tool": shown, "near": near}
    )


def _near(name: str, snapshot: Snapshot) -> list[str]:
    """Names that may have been meant: those that end alike, and neighbours in the alphabet."""
    asked = name.lower().replace("__", ".")
    leaf = asked.rpartition(".")[2]
    names = sorted(tool.transparent_name or tool.canonical for tool in snapshot.tools)
    alike = [known for known in names if leaf in known] if leaf else []
    place = bisect_left(names, asked)
    around = names[max(0, place - _MOST_COMPARED) : place + _MOST_COMPARED]
    candidates = dict.fromkeys([*alike[:_MOST_COMPARED], *around])
    return get_close_matches(asked, candidates, n=3, cutoff=0.5)
