"""What kind of operation a wish is for, by its verbs: who wants to see does not want to delete.

Pure. Nothing is decided by it: an operation of another kind is only found later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.catalog.aql.search.stems import stem
from interlock.catalog.aql.search.vocabulary import Term, term
from interlock.protocol.aql.words import Category

_VERBS: Final = {
    Category.READ: """
get show list find search fetch read view see look check retrieve display browse look_up lookup
look_for inspect explore query tell describe count compare explanation which what who whose where
when how how_many how_much how_long how_far what_time analysis enumerate locate discover identify
monitor watch track know wonder figure_out find_out review summary preview examine
""",
    Category.CREATE: """
create make add new open file register upload write draft compose book schedule insert append
invite jot_down set_up generate build save store clone copy duplicate attach spin_up raise
remember start_new put_up plan arrange
""",
    Category.UPDATE: """
update edit change modify rename move set adjust replace mark assign tag label resolve close reopen
approve reject archive restore fix correct switch merge reschedule postpone turn tweak revise
complete pin star enable disable tick_off check_off
""",
    Category.DELETE: """
delete remove erase get_rid_of throw_away throw_out drop clear wipe purge trash discard cancel
uninstall unsubscribe clean_up empty revoke kick_out take_off chuck ditch unpin
""",
    Category.EXECUTE: """
run execute start stop restart send post publish deploy trigger call click press type fill navigate
pay charge refund play pause notify reply respond let_know tell kill reboot launch invoke log_in
sign_in scroll drag turn_on turn_off switch_on switch_off message ping open visit go_to take
""",
}
FITS: Final = 1.12
CONTRADICTS: Final = 0.86
_READING: Final = frozenset((Category.READ,))
_EARLY: Final = 4
"""A wish says what it is for with its first words."""


def _by_verb() -> dict[str, frozenset[Category]]:
    found: dict[str, set[Category]] = {}
    for category, verbs in _VERBS.items():
        for verb in verbs.split():
            found.setdefault(term(verb), set()).add(category)
    return {verb: frozenset(kinds) for verb, kinds in found.items()}


_CATEGORIES: Final = _by_verb()
_QUESTIONS: Final = frozenset(
    stem(word)
    for word in ("what", "which", "who", "where", "when", "how", "is", "are", "did", "does")
)


def wanted(words: list[str], terms: Iterable[Term]) -> frozenset[Category]:
    """The categories that a wish may be for. Empty: it does not say."""
    for at, one in enumerate(terms):
        if at >= _EARLY:
            break
        kinds = _CATEGORIES.get(one.term)
        if kinds:
            return kinds
    if words and stem(words[0]) in _QUESTIONS:
        return frozenset((Category.READ,))
    return frozenset()


def worths(kinds: frozenset[Category]) -> dict[Category, float]:
    """What each category is worth to a wish: 1 is neither here nor there."""
    return {category: _worth(kinds, category) for category in Category}


def _worth(kinds: frozenset[Category], category: Category) -> float:
    if not kinds:
        return 1.0
    if category in kinds:
        return FITS
    if kinds == _READING:
        # Many servers do not say which of their tools only read.
        return 0.97 if category is Category.EXECUTE else CONTRADICTS
    if category is Category.READ:
        return CONTRADICTS
    return 0.8 if category is Category.DELETE else 0.97
