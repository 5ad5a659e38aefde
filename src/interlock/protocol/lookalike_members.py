"""Members that another reader may take for the one beside them.

JSON tells `Name` from `name`, and so does this node. Many servers do not: Go's decoder takes either
for the same member, by Unicode's rules (`ſ` is an `s`, the Kelvin sign a `k`), and the last one
counts; others take `task_id` for `taskId`. What the node judged must be what the server reads, so a
member that only looks like a known one is refused, not passed on.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from interlock.errors import INVALID_ARGUMENTS, INVALID_PARAMS, InterlockError

_LONGEST: Final = 100
"""Nobody takes a longer name for a known one."""
_SHOWN: Final = 60
_DOTS: Final = str.maketrans({"\u0130": "i", "\u0131": "i"})
"""An i to readers who compare letter by letter, though Unicode keeps these apart."""


def reject_duplicate_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object that Python's `json` has read (`object_pairs_hook`). Raises
    ValueError when one stands twice: of those some readers take the first, others the last."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key[:80]!r} stands twice in one object")
        members[key] = value
    return members


def fold_name(name: str) -> str:
    """What is left of a member's name for the kindest of readers. An underscore in front stays."""
    plain = unicodedata.normalize("NFKC", name.translate(_DOTS)).casefold()
    front = "_" if plain.startswith("_") else ""
    return front + "".join(one for one in plain if one.isalnum())


class KnownMembers:
    """Members with a meaning. `aliases`: names that some readers take for one of them."""

    def __init__(self, *names: str, aliases: dict[str, str] | None = None) -> None:
        self._by_fold = {fold_name(name): name for name in names}
        for alias, name in (aliases or {}).items():
            self._by_fold[fold_name(alias)] = name

    def find_lookalike(self, members: Iterable[str]) -> tuple[str, str] | None:
        """The first that looks like a known member and is none, shortened, and what it looks
        like. None: there is none."""
        known = self._by_fold
        for member in members:
            if len(member) <= _LONGEST:
                meant = known.get(fold_name(member))
                if meant is not None and meant != member:
                    return member[:_SHOWN], meant
        return None


def describe_lookalike(where: str, twin: str, meant: str) -> str:
    """Why it is refused."""
    return (
        f"{where} has a member {twin!r}, which some servers take for `{meant}`: name it `{meant}`, "
        "once, or leave it out."
    )


def reject_lookalikes(raw: bytes) -> None:
    """Refuse arguments that name a member twice, or twice but for upper and lower case: some
    readers take the first, some the last, some do not mind the case. Raises InterlockError."""
    try:
        json.loads(raw, object_pairs_hook=_no_twins)
    except RecursionError:
        raise InterlockError(INVALID_PARAMS, "`arguments` are nested too deeply.") from None


def has_lookalikes(raw: bytes) -> bool:
    """Whether `reject_lookalikes` would refuse these arguments."""
    try:
        reject_lookalikes(raw)
    except InterlockError:
        return True
    return False


def _no_twins(pairs: list[tuple[str, Any]]) -> None:
    if len({name.casefold() for name, _ in pairs}) == len(pairs):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        folded = name.casefold()
        if folded in seen:
            shown = name if len(name) <= _SHOWN else name[:_SHOWN] + "…"
            raise InterlockError(
                INVALID_ARGUMENTS,
                f"`arguments` has {shown!r} twice in one object, and a rule of the policy depends "
                "on them: name each member once.",
                {"member": shown},
            )
        seen.add(folded)
