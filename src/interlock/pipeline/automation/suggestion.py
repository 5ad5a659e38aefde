"""From decisions to a rule that a human may accept: in words, as config, and with its evidence.

Of several that would do, the narrowest is suggested that explains nearly as much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from interlock.config.automation import AutomationConfig, LearnedRule
from interlock.config.problems import BadValue
from interlock.pipeline.approval.record import utc
from interlock.pipeline.automation.agreement import agrees, rationed
from interlock.pipeline.automation.conditions import joined, text
from interlock.pipeline.automation.decision import Decided
from interlock.pipeline.automation.dismissal import Dismissed, dismissal_of
from interlock.pipeline.automation.folders import NEARLY_ALL
from interlock.pipeline.automation.patterns import FINEST, Pattern, clusters, common
from interlock.pipeline.automation.replay import VERDICTS
from interlock.pipeline.automation.rule import Case, CompiledRule, read_case, undoable

MOST_LOOKED_AT: Final = 5_000
"""Decisions about one tool, the newest, in which patterns are looked for."""
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_NAME: Final = 60
_REFUSED: Final = "Humans refused such calls again and again."


class Evidence(msgspec.Struct, frozen=True):
    """Why a rule is suggested."""

    agreed: int
    """Decisions that it would have made the same way."""
    decided: int
    """All that it would have made, or may have and humans made otherwise."""
    counted: int
    """How many of those that agree count: no more than five of a minute."""
    by: dict[str, int]
    """Who decided, and how often."""
    first: float
    last: float
    last_exception: Decided | None = None
    unjudged: int = 0
    """Decisions of which too little is kept to say whether it would have made them."""
    doubtful: int = 0
    """Those of them that were decided otherwise: they are exceptions, and of `decided`."""

    @property
    def words(self) -> str:
        """`decided alike 214 of 216 times by ada (200) and bert (14), from … to …`."""
        names = [f"{name} ({times})" for name, times in self.by.items()]
        who = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        said = (
            f"decided alike {self.agreed} of {self.decided} times by {who}, "
            f"from {utc(self.first)} to {utc(self.last)}"
        )
        if self.last_exception is not None:
            said += f"; last decided otherwise on {utc(self.last_exception.time)}"
        if self.unjudged:
            said += f"; too little is kept of {self.unjudged} to judge"
            if self.doubtful:
                said += f", {self.doubtful} of them decided otherwise"
        return said


class Suggestion(msgspec.Struct, frozen=True):
    """A rule that nobody has accepted yet."""

    id: str
    """The same for the same rule."""
    rule: LearnedRule
    words: str
    evidence: Evidence
    dismissed: Dismissed | None = None
    """What was dismissed before, if that is for this one as well."""


class _Weighed(msgspec.Struct, frozen=True, eq=False):
    """A rule, and which decisions (by their place) it would have made."""

    rule: LearnedRule
    pattern: Pattern
    agreed: frozenset[int]
    evidence: Evidence


def suggest(
    history: Iterable[Decided],
    settings: AutomationConfig,
    *,
    standing: Sequence[LearnedRule] = (),
    irreversible: bool = False,
    dismissed: Sequence[Dismissed] = (),
) -> list[Suggestion]:
    """What could be decided without a human, the best known first. `standing`: rules that are
    accepted already. `irreversible`: also what cannot be undone; such a rule says so. What was
    `dismissed` is there, and says so."""
    by_tool: dict[str, dict[str, Case]] = {}
    for one in sorted(history, key=lambda one: one.time):
        if irreversible or undoable(one.effect):
            # An approval is decided once, however often it is told.
            by_tool.setdefault(one.tool, {}).setdefault(one.approval, read_case(one))
    standing_rules = [CompiledRule(one) for one in standing]
    found: list[tuple[_Weighed, Dismissed | None]] = []
    for tool, known in by_tool.items():
        cases = list(known.values())
        for then in VERDICTS:
            narrowest = _narrowest(_candidates(tool, then, cases[-MOST_LOOKED_AT:], settings))
            if len(cases) > MOST_LOOKED_AT:
                # What speaks for a rule, and against it, is all that is remembered.
                again = [_weigh(one.rule, one.pattern, cases, settings) for one in narrowest]
                narrowest = [one for one in again if one is not None]
            for left in narrowest:
                if not _stands(left, cases, standing_rules):
                    rule, agreed = left.rule, [cases[number] for number in left.agreed]
                    by = dismissal_of(id_of(rule), rule, agreed, dismissed, settings)
                    found.append((left, by))
    found.sort(key=lambda pair: (-pair[0].evidence.counted, pair[0].rule.name))
    return [_suggestion(*pair) for pair in found]


def _suggestion(weighed: _Weighed, dismissed: Dismissed | None) -> Suggestion:
    rule, words = weighed.rule, words_of(weighed.rule, weighed.pattern)
    # Why it is denied is told to whoever asks next, and is not to tell of others' arguments.
    reason = words if rule.then == "allow" else _REFUSED
    rule = msgspec.structs.replace(rule, reason=reason)
    return Suggestion(id_of(rule), rule, words, weighed.evidence, dismissed)


def id_of(rule: LearnedRule) -> str:
    """By what it decides, not by what it is called. It begins with a letter."""
    about = [rule.then, rule.tools, rule.callers, rule.when, rule.irreversible, rule.open]
    return "s" + sha256(msgspec.json.encode(about)).hexdigest()[:8]


def words_of(rule: LearnedRule, pattern: Pattern) -> str:
    """The rule as a sentence."""
    who = " or ".join(text(one) for one in rule.callers)
    what = " or ".join(one if one.isprintable() else text(one) for one in rule.tools)
    said = f"Let {who} call {what}" if rule.then == "allow" else f"Refuse {what} to {who}"
    said += " without asking"
    if rule.open:
        # What is not looked at any more comes first.
        said = f"{said[0].lower()}{said[1:]}"
        said = f"Whatever {' and '.join(text(one) for one in rule.open)} says: {said}"
    conditions = [one.words for one in pattern.pieces]
    if conditions:
        said += f", when {', and '.join(conditions)}"
    if rule.irreversible:
        said += ". This cannot be undone"
    return f"{said}."


# -- candidates


def _candidates(
    tool: str, then: str, cases: list[Case], settings: AutomationConfig
) -> Iterator[_Weighed]:
    """Rules that are good enough."""
    verdict = VERDICTS[then]
    alike = [one for one in cases if one.decided.verdict == verdict and one.arguments is not None]
    if len(alike) < settings.decisions:
        return
    against = [one for one in cases if one.decided.verdict != verdict]
    share = settings.agreement
    tried: set[str] = set()
    may_be_open = frozenset(name for one in common(alike) for name in one.open)
    for group in clusters(alike, settings.decisions):
        for finer in range(FINEST + 1 if _has_folders(group) else 1):
            good = False
            for pattern in common(group, against, finer=finer, share=share):
                # Some that were picked out for what they hide open nothing that all together do
                # not.
                if not may_be_open.issuperset(pattern.open):
                    continue
                rule = _rule(tool, then, pattern, group)
                if rule.name in tried:
                    continue
                tried.add(rule.name)
                weighed = _weigh(rule, pattern, cases, settings)
                if weighed is not None:
                    good = True
                    yield weighed
            if good:
                break


def _has_folders(group: Iterable[Case]) -> bool:
    return any(
        isinstance(value, str) and "/" in value
        for one in group
        for value in (one.arguments or {}).values()
    )


def _rule(tool: str, then: str, pattern: Pattern, group: Sequence[Case]) -> LearnedRule:
    rule = LearnedRule(
        name="-",
        then="allow" if then == "allow" else "deny",
        tools=[tool],
        callers=list(pattern.callers),
        when=joined(pattern.pieces),
        open=list(pattern.open),
        irreversible=not all(undoable(one.decided.effect) for one in group),
    )
    shown = _NAME.sub("-", tool)[-_MOST_NAME:].strip("-.") or "tool"
    return msgspec.structs.replace(rule, name=f"{then}-{shown}-{id_of(rule)[1:7]}")


def _weigh(
    rule: LearnedRule, pattern: Pattern, cases: Sequence[Case], settings: AutomationConfig
) -> _Weighed | None:
    try:
        compiled = CompiledRule(rule)
    except BadValue:
        # Too long for the library, say. Then it is no rule for people either.
        return None
    verdict = VERDICTS[rule.then]
    agreed: list[int] = []
    others: list[int] = []
    unjudged = doubtful = 0
    for number, one in enumerate(cases):
        covers = compiled.covers(one)
        hides = covers is None and (bool(one.hidden) or one.arguments is None)
        otherwise = one.decided.verdict != verdict
        unjudged += hides
        doubtful += hides and otherwise
        if otherwise and (covers or hides):
            # What may have been an exception is one.
            others.append(number)
        elif covers:
            agreed.append(number)
    decisions = [cases[number].decided for number in agreed]
    exceptions = [cases[number].decided for number in others]
    times = [one.time for one in decisions]
    counted = rationed(times)
    if counted < settings.decisions:
        return None
    if not agrees(times, [one.time for one in exceptions], settings.agreement):
        return None
    evidence = Evidence(
        agreed=len(agreed),
        decided=len(agreed) + len(others),
        counted=counted,
        by=dict(Counter(one.by for one in decisions).most_common()),
        first=decisions[0].time,
        last=decisions[-1].time,
        last_exception=exceptions[-1] if exceptions else None,
        unjudged=unjudged,
        doubtful=doubtful,
    )
    rule = msgspec.structs.replace(rule, evidence=evidence.words)
    return _Weighed(rule, pattern, frozenset(agreed), evidence)


# -- choosing


def _narrowest(candidates: Iterable[_Weighed]) -> list[_Weighed]:
    """Those that are left when what another says better is not said."""
    left = sorted(
        candidates, key=lambda one: (-len(one.agreed), len(one.pattern.open), one.rule.name)
    )
    chosen: list[_Weighed] = []
    for one in left:
        narrower = any(
            other.agreed < one.agreed and len(other.agreed) >= NEARLY_ALL * len(one.agreed)
            for other in left
        )
        if not narrower and not any(one.agreed <= other.agreed for other in chosen):
            chosen.append(one)
    for one in chosen[::-1]:
        # What callers share needs no rule of its own where each has one for it.
        if one.agreed <= frozenset().union(*(other.agreed for other in chosen if other is not one)):
            chosen.remove(one)
    return chosen


def _stands(weighed: _Weighed, cases: Sequence[Case], standing: Sequence[CompiledRule]) -> bool:
    """Whether accepted rules answer all that this one would."""
    return bool(standing) and all(
        any(one.rule.then == weighed.rule.then and one.covers(cases[number]) for one in standing)
        for number in weighed.agreed
    )
