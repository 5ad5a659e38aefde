"""Two schemas side by side: the members of objects and the items of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.facts import Facts, rest_of
from interlock.catalog.contracts.findings import Family, Finding
from interlock.catalog.contracts.given import spoken_of
from interlock.catalog.contracts.rules_objects import may_be_there
from interlock.catalog.contracts.side_by_side import Side, place_of, top_of

if TYPE_CHECKING:
    from interlock.catalog.contracts.schemas import Comparison

_MOST_POSITIONS: Final = 50


def objects(comparison: Comparison, old: Side, new: Side, around: frozenset[str]) -> list[Finding]:
    return [
        *_fields(comparison, old, new, around),
        *_other_members(comparison, old, new),
        *_patterns(comparison, old, new),
        *_names(comparison, old, new),
        *_brought(comparison, old, new),
    ]


def _fields(comparison: Comparison, old: Side, new: Side, around: frozenset[str]) -> list[Finding]:
    was, now = _named(old.facts), _named(new.facts)
    came = now.keys() - was.keys() - spoken_of(old.nodes).names
    gone = was.keys() - now.keys() - spoken_of(new.nodes).names
    found: list[Finding] = []
    # Where the new side says nothing at all, nothing was taken out of it.
    for name in sorted(gone - around) if new.nodes else ():
        found.append(Finding(Family.FIELD_GONE, was[name].path, before=was[name].value))
    for name in sorted(came):
        found.append(_new_field(comparison, old, new, name, now[name]))
    for name in sorted(was.keys() & now.keys()):
        found += comparison.compare(tuple(old.facts.under(name)), tuple(new.facts.under(name)))
    for name in sorted(new.facts.required - old.facts.required - came):
        found.append(Finding(Family.REQUIRED_NEW, _place(new, old, name, now), narrows=True))
    for name in sorted(old.facts.required - new.facts.required - gone):
        found.append(Finding(Family.REQUIRED_GONE, _place(old, new, name, was), widens=True))
    return found


def _named(facts: Facts) -> dict[str, Node]:
    """The members that have a schema of their own. A member that may not be there has none."""
    return {
        name: node.named("properties", name)
        for node in reversed(facts.nodes)
        for name, said in node.words.get("properties", {}).items()
        if said is not False
    }


def _place(side: Side, other: Side, name: str, named: dict[str, Node]) -> str:
    if name in named:
        return named[name].path
    for node in side.facts.having("required"):
        if name in node.words["required"]:
            return node.place("properties", name)
    return top_of(other, side)


def _new_field(comparison: Comparison, old: Side, new: Side, name: str, node: Node) -> Finding:
    if name in new.facts.required and name not in old.facts.required:
        return Finding(Family.REQUIRED_NEW, node.path, narrows=True, after=node.value)
    forward, backward = comparison.forward, comparison.backward
    sent = forward.given(old.nodes)
    holds = forward.inside(sent, old.facts.under(name))
    claimed = may_be_there(sent, old.facts, name) and not forward.holds(
        holds, new.facts.under(name)
    )
    known = [one for one in old.facts.under(name) if not (backward.ignoring and one.never)]
    read = backward.inside(backward.given(new.nodes), new.facts.under(name))
    return Finding(
        Family.FIELD_NEW, node.path, claimed, not backward.holds(read, known), after=node.value
    )


def _other_members(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    was, now = _rests(old.facts), _rests(new.facts)
    closed, closes = any(one.never for one in was), any(one.never for one in now)
    if closed is closes:
        return [] if closed or not (was or now) else comparison.compare(tuple(was), tuple(now))
    path = (now or was)[0].path
    before = was[0].value if was else None
    after = now[0].value if now else None
    what = "additionalProperties"
    return [Finding(Family.OTHER_MEMBERS, path, closes, closed, before, after, what)]


def _rests(facts: Facts) -> list[Node]:
    rests = [rest_of(node) for node in facts.nodes]
    return [rest[2] for rest in rests if rest is not None and rest[2].value is not True]


def _patterns(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    was, now = _by_name(old.facts, "patternProperties"), _by_name(new.facts, "patternProperties")
    found: list[Finding] = []
    for pattern in sorted(was.keys() | now.keys()):
        before, after = tuple(was.get(pattern, ())), tuple(now.get(pattern, ()))
        if before and after:
            found += comparison.compare(before, after)
            continue
        node = (before or after)[0]
        narrows, widens = comparison.differs(old, new, "patternProperties")
        shown = (before[0].value if before else None, after[0].value if after else None)
        found.append(
            Finding(Family.CONSTRAINT, node.path, narrows, widens, *shown, "patternProperties")
        )
    return found


def _by_name(facts: Facts, word: str) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in facts.having(word):
        for name in node.words[word]:
            found.setdefault(name, []).append(node.named(word, name))
    return found


def _names(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    was = tuple(node.one("propertyNames") for node in old.facts.having("propertyNames"))
    now = tuple(node.one("propertyNames") for node in new.facts.having("propertyNames"))
    return comparison.compare(was, now) if was or now else []


def _brought(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    """What a member brings along: other members, or a schema for the whole."""
    found: list[Finding] = []
    was, now = _bringing(old.facts), _bringing(new.facts)
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name, set()), now.get(name, set())
        if before != after:
            path = f"{place_of(old, new, 'dependentRequired')}/{name}"
            shown = (sorted(before) or None, sorted(after) or None)
            flags = (bool(after - before), bool(before - after))
            found.append(Finding(Family.CONSTRAINT, path, *flags, *shown, "dependentRequired"))
    whole, whole_now = (_by_name(side.facts, "dependentSchemas") for side in (old, new))
    for name in sorted(whole.keys() | whole_now.keys()):
        found += comparison.compare(tuple(whole.get(name, ())), tuple(whole_now.get(name, ())))
    return found


def _bringing(facts: Facts) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for node in facts.having("dependentRequired"):
        for name, others in node.words["dependentRequired"].items():
            found.setdefault(name, set()).update(others)
    return found


# -- arrays


def arrays(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    found: list[Finding] = []
    last = min(max(old.facts.prefix, new.facts.prefix), _MOST_POSITIONS)
    for at in range(last + 1):
        was, now = tuple(old.facts.item(at)), tuple(new.facts.item(at))
        if was or now:
            found += comparison.compare(was, now)
    was_in, now_in = (_containing(side.facts) for side in (old, new))
    if not comparison.meanings.alike(was_in, now_in):
        narrows, widens = comparison.differs(old, new, "contains", "minContains", "maxContains")
        path = place_of(old, new, "contains")
        before, after = (one[0].value if one else None for one in (was_in, now_in))
        found.append(Finding(Family.CONSTRAINT, path, narrows, widens, before, after, "contains"))
    return found


def _containing(facts: Facts) -> list[Node]:
    return [
        node.part("contains", "minContains", "maxContains") for node in facts.having("contains")
    ]
