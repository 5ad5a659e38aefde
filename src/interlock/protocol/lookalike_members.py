"""Lookalike members: names that another JSON reader may take for a known member.

JSON distinguishes `Name` from `name`, and so does this node. Many servers do not: Go's decoder
ignores case by the rules of Unicode (`ſ` is an `s`, the Kelvin sign is a `k`), and the last member
counts. Others accept `task_id` for `taskId`. The server must read what the node has checked, so a
member that only looks like a known one is rejected.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from interlock.errors import INVALID_ARGUMENTS, INVALID_PARAMS, InterlockError

_MAX_NAME_LENGTH: Final = 100
"""Longer names look like no known member."""
_MAX_SHOWN_LENGTH: Final = 60
_DOTTED_I: Final = str.maketrans({"\u0130": "i", "\u0131": "i"})
"""Letters that are an i for readers that compare by letter, although Unicode distinguishes them."""


def reject_duplicate_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object (`object_pairs_hook` of `json`).

    Raises:
        ValueError: a member occurs twice. Some readers use the first, others the last.
    """
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key[:80]!r} occurs twice in one object")
        members[key] = value
    return members


def fold_name(name: str) -> str:
    """Return the name of a member as the most tolerant reader compares it. A leading underscore
    stays."""
    normalized = unicodedata.normalize("NFKC", name.translate(_DOTTED_I)).casefold()
    prefix = "_" if normalized.startswith("_") else ""
    return prefix + "".join(character for character in normalized if character.isalnum())


class KnownMembers:
    """The known members of a message.

    Args:
        aliases: other names that some readers accept for a known member.
    """

    def __init__(self, *names: str, aliases: dict[str, str] | None = None) -> None:
        self._by_fold = {fold_name(name): name for name in names}
        for alias, name in (aliases or {}).items():
            self._by_fold[fold_name(alias)] = name

    def find_lookalike(self, members: Iterable[str]) -> tuple[str, str] | None:
        """Return the first lookalike, shortened, and the known member. None: there is none."""
        by_fold = self._by_fold
        for member in members:
            if len(member) <= _MAX_NAME_LENGTH:
                known_member = by_fold.get(fold_name(member))
                if known_member is not None and known_member != member:
                    return member[:_MAX_SHOWN_LENGTH], known_member
        return None


def describe_lookalike(subject: str, lookalike: str, known_member: str) -> str:
    """Return the error message for a lookalike member."""
    return (
        f"{subject} has a member {lookalike!r}, which some servers read as `{known_member}`. "
        "Rename it to "
        f"`{known_member}`, or remove it."
    )


def reject_lookalikes(raw: bytes) -> None:
    """Reject arguments with duplicate members, also if they differ only in case. Readers differ in
    which one they use. Raises InterlockError."""
    try:
        json.loads(raw, object_pairs_hook=_check_pairs)
    except RecursionError:
        raise InterlockError(INVALID_PARAMS, "`arguments` are nested too deeply.") from None


def has_lookalikes(raw: bytes) -> bool:
    """Return whether `reject_lookalikes` would reject these arguments."""
    try:
        reject_lookalikes(raw)
    except InterlockError:
        return True
    return False


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    if len({name.casefold() for name, _ in pairs}) == len(pairs):
        return
    names: set[str] = set()
    for name, _ in pairs:
        folded = name.casefold()
        if folded in names:
            short_name = name if len(name) <= _MAX_SHOWN_LENGTH else name[:_MAX_SHOWN_LENGTH] + "…"
            raise InterlockError(
                INVALID_ARGUMENTS,
                f"`arguments` has {short_name!r} twice in one object, and a policy rule depends "
                "on the "
                "arguments. Send each member once.",
                {"member": short_name},
            )
        names.add(folded)
