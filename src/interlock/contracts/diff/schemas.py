"""The differences of two JSON Schemas: what changed, where, and what breaks.

A change counts as compatible only if that is proven (`containment.py`). A parallel walk through
both schemas finds the changes and their names. A change is dropped if a proof at a higher level
shows that it makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from interlock.contracts.diff.changes import ChangeReason, Role, SchemaChange
from interlock.contracts.diff.containment import Prover
from interlock.contracts.diff.differences import Difference, DifferenceKind, to_change
from interlock.contracts.diff.documents import (
    SchemaDocument,
    SchemaNode,
    UnreadableSchema,
    measure,
)
from interlock.contracts.diff.equivalence import EquivalenceClasses, canonical_text
from interlock.contracts.diff.known_facts import Premise
from interlock.contracts.diff.schema_differences import (
    SchemaSide,
    diff_annotations,
    diff_arrays,
    diff_bounds,
    diff_conditions,
    diff_objects,
    diff_references,
    diff_scalars,
    diff_types,
    diff_unions,
    diff_values,
)

_MAX_STEPS: Final = 5_000
_SIZE_PER_STEP: Final = 50
_MAX_CHANGES: Final = 500
_MAX_DEPTH: Final = 40

_LIMIT_REACHED: Final = "The schema is too large to compare everything."


def diff_schemas(
    old: Any, new: Any, role: Role = "both", *, strict: bool | None = None, formats: bool = False
) -> list[SchemaChange]:
    """Return the changes between two schemas, most serious first. Never raises for their content.

    Args:
        strict: members that a schema does not name count as sent. This is the default for plain
            input and output
            schemas. A stored type is judged by the members that it names, so that a new optional
            field is compatible.
        formats: `format` is an assertion, not only an annotation.
    """
    try:
        measure(old)
        measure(new)
        if canonical_text(old) == canonical_text(new):
            return []
        old_document, new_document = (
            SchemaDocument(old, formats=formats),
            SchemaDocument(new, formats=formats),
        )
    except UnreadableSchema as exc:
        return [_unreadable_change(f"The schema cannot be compared: {exc}.")]
    except UnicodeEncodeError:
        return [_unreadable_change("The schema cannot be compared: it has invalid Unicode text.")]
    except RecursionError:
        return [_unreadable_change("The schema cannot be compared: it is nested too deeply.")]
    is_strict = role != "both" if strict is None else strict
    comparison = Comparison(old_document, new_document, strict=is_strict)
    try:
        differences = comparison.compare((old_document.root_node,), (new_document.root_node,))
        differences = [
            *differences,
            *comparison.find_unexplained(
                old_document.root_node, new_document.root_node, differences
            ),
        ]
    except RecursionError:
        return [
            _unreadable_change(
                "The schema cannot be compared: its references are nested too deeply."
            )
        ]
    return _to_changes(differences, role, comparison.is_exhausted)


def _to_changes(
    differences: Iterable[Difference], role: Role, is_exhausted: bool
) -> list[SchemaChange]:
    changes_by_key: dict[tuple[ChangeReason, str, str], SchemaChange] = {}
    for difference in differences:
        if difference.kind is DifferenceKind.UNDECIDED and is_exhausted:
            difference = msgspec.structs.replace(difference, detail=_LIMIT_REACHED)
        change = to_change(difference, role)
        if change is not None:
            key = (change.reason, change.path, change.message)
            if key not in changes_by_key or change.breaking:
                changes_by_key[key] = change
    changes = sorted(
        changes_by_key.values(),
        key=lambda change: (not change.breaking, change.path, change.reason),
    )
    if not changes:
        message = "The schema is written differently, but means the same."
        return [SchemaChange(ChangeReason.REWRITTEN, "", False, message)]
    if len(changes) > _MAX_CHANGES:
        remaining = len(changes) - _MAX_CHANGES
        breaks = any(change.breaking for change in changes)
        last_change = SchemaChange(
            ChangeReason.UNDECIDED, "", breaks, f"There are {remaining} more changes."
        )
        changes = [*changes[:_MAX_CHANGES], last_change]
    return changes


def _unreadable_change(message: str) -> SchemaChange:
    return SchemaChange(ChangeReason.UNREADABLE, "", True, message)


class Comparison:
    """The comparison of two documents."""

    def __init__(self, old: SchemaDocument, new: SchemaDocument, *, strict: bool) -> None:
        self.classes = EquivalenceClasses(old, new)
        self.forward = Prover(self.classes, declared_only=not strict)
        """The proofs from old to new: everything that was valid stays valid."""
        self.backward = Prover(self.classes, declared_only=not strict, ignores_unknown=not strict)
        """The proofs from new to old: everything that is valid was valid before."""
        self.forward.prove_shared_references(is_forward=True)
        self.backward.prove_shared_references(is_forward=False)
        self.is_exhausted = False
        self._results: dict[Any, list[Difference]] = {}
        self._keep_alive: list[Any] = []
        self._depth = 0
        self._steps = 0

    def compare(
        self,
        olds: tuple[SchemaNode, ...],
        news: tuple[SchemaNode, ...],
        outer_names: frozenset[str] = frozenset(),
    ) -> list[Difference]:
        """Return the differences between schemas that apply at the same place. Either side may be
        several schemas at once.

        Args:
            outer_names: members that other parts of the new side mention for the same place.
        """
        olds, news = tuple(dict.fromkeys(olds)), tuple(dict.fromkeys(news))
        key = (frozenset(map(id, olds)), frozenset(map(id, news)), outer_names)
        result = self._results.get(key)
        if result is not None:
            return result
        if self.classes.are_identical(olds, news):
            return []
        # A recursive pair is reported where it occurs first.
        self._results[key] = [Difference(DifferenceKind.ELSEWHERE, "", narrows=True, widens=True)]
        self._keep_alive.append((olds, news))
        narrows = not self.forward.proves_all(self.forward.make_premise(olds), news)
        widens = not self.backward.proves_all(self.backward.make_premise(news), olds)
        differences: list[Difference] = []
        size = sum(node.size for node in (*olds, *news))
        self._steps += 1 + size // _SIZE_PER_STEP
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            self.is_exhausted = True
        else:
            self._depth += 1
            differences = self._compare_parts(olds, news, outer_names)
            self._depth -= 1
        self.is_exhausted = (
            self.is_exhausted or self.forward.is_exhausted or self.backward.is_exhausted
        )
        path = news[0].path if news else olds[0].path
        self._results[key] = _apply_proofs(differences, narrows, widens, path)
        return self._results[key]

    def _compare_parts(
        self,
        olds: tuple[SchemaNode, ...],
        news: tuple[SchemaNode, ...],
        outer_names: frozenset[str],
    ) -> list[Difference]:
        old = SchemaSide(olds, self.forward.facts(Premise(olds)))
        new = SchemaSide(news, self.backward.facts(Premise(news)))
        differences = diff_references(old, new)
        if differences:
            # Without the target of a reference, nothing else can be compared.
            return differences
        differences = diff_annotations(old, new)
        types, are_disjoint = diff_types(old, new)
        differences += types
        if are_disjoint:
            # The types are disjoint: other differences say nothing.
            return differences
        differences += diff_values(old, new)
        differences += diff_bounds(old, new)
        differences += diff_scalars(old, new)
        differences += diff_objects(self, old, new, outer_names)
        differences += diff_arrays(self, old, new)
        differences += diff_unions(self, old, new, outer_names)
        differences += diff_conditions(self, old, new)
        return differences

    def find_unexplained(
        self, old: SchemaNode, new: SchemaNode, differences: list[Difference]
    ) -> list[Difference]:
        """Return differences that the proofs show, but that are not among the reported ones."""
        explained = [
            difference
            for difference in differences
            if difference.kind is not DifferenceKind.ELSEWHERE
        ]
        narrows = not self.forward.proves_all(self.forward.make_premise([old]), [new])
        widens = not self.backward.proves_all(self.backward.make_premise([new]), [old])
        return _apply_proofs(explained, narrows, widens, new.path)[len(explained) :]

    # -- used by the parts of a comparison

    def differs(
        self, old: SchemaSide, new: SchemaSide, keyword: str, *more_keywords: str
    ) -> tuple[bool, bool]:
        """Return whether the keyword of the new side narrows, and whether that of the old side
        widens, given everything else."""
        narrows = any(
            not self.forward.proves(
                self.forward.make_premise(old.nodes), node.restrict(keyword, *more_keywords)
            )
            for node in new.facts.nodes_with(keyword)
        )
        widens = any(
            not self.backward.proves(
                self.backward.make_premise(new.nodes), node.restrict(keyword, *more_keywords)
            )
            for node in old.facts.nodes_with(keyword)
        )
        return narrows, widens


def _apply_proofs(
    differences: list[Difference], narrows: bool, widens: bool, path: str
) -> list[Difference]:
    """Correct the differences by what is proven for all of them together."""
    confirmed = [
        msgspec.structs.replace(
            difference, narrows=difference.narrows and narrows, widens=difference.widens and widens
        )
        for difference in differences
    ]
    has_removed_field = any(
        difference.kind is DifferenceKind.FIELD_GONE for difference in confirmed
    )
    narrows_unexplained = (
        narrows
        and not has_removed_field
        and not any(difference.narrows for difference in confirmed)
    )
    widens_unexplained = (
        widens and not has_removed_field and not any(difference.widens for difference in confirmed)
    )
    if narrows_unexplained or widens_unexplained:
        confirmed.append(
            Difference(DifferenceKind.UNDECIDED, path, narrows_unexplained, widens_unexplained)
        )
    return confirmed
