"""Which tool is meant? Names in any accepted form become a route."""

from __future__ import annotations

from difflib import get_close_matches

from interlock.call import Call
from interlock.catalog.offering import Tool
from interlock.catalog.snapshot import Snapshot
from interlock.errors import UNKNOWN_TOOL, InterlockError

_MOST_NAMES_COMPARED = 400


def resolve(call: Call, snapshot: Snapshot) -> Tool:
    """The tool that the call names; the call learns its route and effect."""
    tool = snapshot.resolve(call.name)
    if tool is None:
        raise _unknown(call.name, snapshot)
    call.route = tool
    call.upstream = tool.upstream
    call.effect = tool.effect_word
    return tool


def _unknown(name: str, snapshot: Snapshot) -> InterlockError:
    # Comparing is slow, and a stranger's typo must not cost more than a call: only so many.
    leaf = name.rpartition(".")[2].rpartition("__")[2].lower()
    names = [
        tool.canonical
        for tool in snapshot.tools
        if leaf in tool.canonical or tool.canonical[:2] == name[:2]
    ]
    near = get_close_matches(name, names[:_MOST_NAMES_COMPARED], n=3, cutoff=0.5)
    shown = name if len(name) <= 100 else name[:100] + "…"
    hint = f" Did you mean {' or '.join(near)}?" if near else " `tools/list` has the names."
    return InterlockError(
        UNKNOWN_TOOL, f"There is no tool called {shown!r}.{hint}", {"tool": shown, "near": near}
    )
