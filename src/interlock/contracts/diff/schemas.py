"""The difference of two JSON Schemas: what changed, where, and whom it breaks.

A change is called compatible only where that is proven (`containment.py`). What is reported, and
under which name, comes from walking through both schemas side by side; a change that a proof
further up shows to make no difference is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from interlock.contracts.diff.changes import ChangeReason, Role, SchemaChange
from interlock.contracts.diff.containment import Prover
from interlock.contracts.diff.differences import Difference, DifferenceKind, judged
from interlock.contracts.diff.documents import (
    SchemaDocument,
    SchemaNode,
    UnreadableSchema,
    measured,
)
from interlock.contracts.diff.equivalence import EquivalenceClasses, text_of
from interlock.contracts.diff.known_facts import Premise
from interlock.contracts.diff.schema_differences import (
    SchemaSide,
    arrays,
    astray,
    bounds,
    conditions,
    kinds,
    listed_values,
    objects,
    scalars,
    unions,
    words_for_people,
)

_MOST_STEPS: Final = 5_000
_LONG: Final = 50
_MOST_CHANGES: Final = 500
_DEEPEST: Final = 40

_TOO_MUCH: Final = "There was too much of it to look at everything."


def diff_schemas(
    old: Any, new: Any, role: Role = "both", *, strict: bool | None = None, formats: bool = False
) -> list[SchemaChange]:
    """What changed between two schemas, most serious first. Never raises for what they contain.

    `strict`: members that a schema does not name count as sent. That is so for plain input and
    output schemas; a stored type is judged by what it names, so that a new optional field is no
    break. `formats`: `format` is checked, and not only a note.
    """
    try:
        measured(old)
        measured(new)
        if text_of(old) == text_of(new):
            return []
        before, after = SchemaDocument(old, formats=formats), SchemaDocument(new, formats=formats)
    except UnreadableSchema as exc:
        return [_unreadable(f"It cannot be compared: {exc}.")]
    except UnicodeEncodeError:
        return [_unreadable("It cannot be compared: there is text in it that is no Unicode.")]
    except RecursionError:
        return [_unreadable("It cannot be compared: it is nested too deep.")]
    taken_literally = role != "both" if strict is None else strict
    comparison = Comparison(before, after, strict=taken_literally)
    try:
        found = comparison.compare((before.top,), (after.top,))
        found = [*found, *comparison.unsaid(before.top, after.top, found)]
    except RecursionError:
        return [_unreadable("It cannot be compared: its references lead too deep.")]
    return _changes(found, role, comparison.exhausted)


def _changes(found: Iterable[Difference], role: Role, exhausted: bool) -> list[SchemaChange]:
    kept: dict[tuple[ChangeReason, str, str], SchemaChange] = {}
    for finding in found:
        if finding.family is DifferenceKind.UNDECIDED and exhausted:
            finding = msgspec.structs.replace(finding, what=_TOO_MUCH)
        change = judged(finding, role)
        if change is not None:
            key = (change.reason, change.path, change.sentence)
            if key not in kept or change.breaking:
                kept[key] = change
    changes = sorted(kept.values(), key=lambda one: (not one.breaking, one.path, one.reason))
    if not changes:
        sentence = "It is written otherwise, and means the same."
        return [SchemaChange(ChangeReason.REWRITTEN, "", False, sentence)]
    if len(changes) > _MOST_CHANGES:
        left = len(changes) - _MOST_CHANGES
        breaks = any(change.breaking for change in changes)
        more = SchemaChange(ChangeReason.UNDECIDED, "", breaks, f"There are {left} more changes.")
        changes = [*changes[:_MOST_CHANGES], more]
    return changes


def _unreadable(sentence: str) -> SchemaChange:
    return SchemaChange(ChangeReason.UNREADABLE, "", True, sentence)


class Comparison:
    """Two documents side by side."""

    def __init__(self, old: SchemaDocument, new: SchemaDocument, *, strict: bool) -> None:
        self.meanings = EquivalenceClasses(old, new)
        self.forward = Prover(self.meanings, as_declared=not strict)
        """From old to new: does everything that was valid stay so?"""
        self.backward = Prover(self.meanings, as_declared=not strict, ignoring=not strict)
        """From new to old: was everything that is valid so before?"""
        self.forward.grant(forth=True)
        self.backward.grant(forth=False)
        self.exhausted = False
        self._done: dict[Any, list[Difference]] = {}
        self._kept: list[Any] = []
        self._depth = 0
        self._steps = 0

    def compare(
        self,
        olds: tuple[SchemaNode, ...],
        news: tuple[SchemaNode, ...],
        around: frozenset[str] = frozenset(),
    ) -> list[Difference]:
        """What differs between schemas that hold at the same place. Both may be several at once.

        `around`: members that the new side speaks of elsewhere for the same place.
        """
        olds, news = tuple(dict.fromkeys(olds)), tuple(dict.fromkeys(news))
        key = (frozenset(map(id, olds)), frozenset(map(id, news)), around)
        known = self._done.get(key)
        if known is not None:
            return known
        if self.meanings.alike(olds, news):
            return []
        # Met again further down, it is reported where it was met first.
        self._done[key] = [Difference(DifferenceKind.ELSEWHERE, "", narrows=True, widens=True)]
        self._kept.append((olds, news))
        narrows = not self.forward.holds(self.forward.given(olds), news)
        widens = not self.backward.holds(self.backward.given(news), olds)
        found: list[Difference] = []
        length = sum(node.length for node in (*olds, *news))
        self._steps += 1 + length // _LONG
        if self._steps > _MOST_STEPS or self._depth > _DEEPEST:
            self.exhausted = True
        else:
            self._depth += 1
            found = self._walk(olds, news, around)
            self._depth -= 1
        self.exhausted = self.exhausted or self.forward.exhausted or self.backward.exhausted
        place = news[0].path if news else olds[0].path
        self._done[key] = _settled(found, narrows, widens, place)
        return self._done[key]

    def _walk(
        self, olds: tuple[SchemaNode, ...], news: tuple[SchemaNode, ...], around: frozenset[str]
    ) -> list[Difference]:
        old = SchemaSide(olds, self.forward.facts(Premise(olds)))
        new = SchemaSide(news, self.backward.facts(Premise(news)))
        found = astray(old, new)
        if found:
            # What cannot be looked at says nothing about the rest.
            return found
        found = words_for_people(old, new)
        types, apart = kinds(old, new)
        found += types
        if apart:
            # Of what is something else altogether the rest says nothing.
            return found
        found += listed_values(old, new)
        found += bounds(old, new)
        found += scalars(old, new)
        found += objects(self, old, new, around)
        found += arrays(self, old, new)
        found += unions(self, old, new, around)
        found += conditions(self, old, new)
        return found

    def unsaid(self, old: SchemaNode, new: SchemaNode, found: list[Difference]) -> list[Difference]:
        """What is not shown to hold for the whole, and was reported nowhere."""
        said = [finding for finding in found if finding.family is not DifferenceKind.ELSEWHERE]
        narrows = not self.forward.holds(self.forward.given([old]), [new])
        widens = not self.backward.holds(self.backward.given([new]), [old])
        return _settled(said, narrows, widens, new.path)[len(said) :]

    # -- what the parts of a comparison ask

    def differs(self, old: SchemaSide, new: SchemaSide, word: str, *more: str) -> tuple[bool, bool]:
        """Whether what the new side says with a word narrows, and what the old one said with it
        widens, given everything else."""
        narrows = any(
            not self.forward.contained(self.forward.given(old.nodes), node.part(word, *more))
            for node in new.facts.having(word)
        )
        widens = any(
            not self.backward.contained(self.backward.given(new.nodes), node.part(word, *more))
            for node in old.facts.having(word)
        )
        return narrows, widens


def _settled(found: list[Difference], narrows: bool, widens: bool, place: str) -> list[Difference]:
    """The differences, in the light of what is proven for all of them together."""
    settled = [
        msgspec.structs.replace(
            finding, narrows=finding.narrows and narrows, widens=finding.widens and widens
        )
        for finding in found
    ]
    gone = any(finding.family is DifferenceKind.FIELD_GONE for finding in settled)
    unsaid_narrower = narrows and not gone and not any(one.narrows for one in settled)
    unsaid_wider = widens and not gone and not any(one.widens for one in settled)
    if unsaid_narrower or unsaid_wider:
        settled.append(Difference(DifferenceKind.UNDECIDED, place, unsaid_narrower, unsaid_wider))
    return settled
