"""Reported actions that are not done yet: each report lets exactly one matching call pass, for a
short time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.aql.safety.patterns import ActionHint, read
from interlock.aql.safety.risk_score import root, words_of
from interlock.aql.safety.store import Tier
from interlock.core.call import Principal
from interlock.trust.approvals.record import canonical

MOST_OPEN: Final = 100
"""So many reports of one principal are held; more push out the oldest."""

_SYNONYMS: Final[tuple[frozenset[str], ...]] = tuple(
    frozenset(line.split())
    for line in (
        "get read fetch show view retrieve look open load describe inspect see check cat print",
        "list show enumerate get browse read ls display",
        "search find query look lookup locate grep",
        "create make add new insert open register start write",
        "update edit change modify set patch write replace adjust",
        "delete remove erase drop destroy rm unlink discard purge",
        "send post publish mail email message notify submit share",
        "run execute start launch invoke trigger perform call",
        "stop cancel abort terminate kill close end halt",
        "move rename relocate transfer mv",
        "copy duplicate clone cp",
        "write save store put upload append",
        "merge combine join",
        "deploy release publish ship roll",
        "pay charge transfer buy",
    )
)
_ENDINGS: Final = re.compile(r"(?:ies|(?<=s|x|z)es|(?<=ch|sh)es|(?<!s)s)$")


class StepReport(msgspec.Struct):
    """A reported action, which is not done yet."""

    execution: str
    hint: ActionHint
    at: float
    """On the clock that never goes back."""
    value: int
    """How risky it was found."""
    operation: str = ""
    """The operation itself, where the agent named it."""
    params: bytes | None = None
    """A digest of what it will be called with, where the agent said so."""
    let: Tier | None = None
    """Up to which tier a human let it through."""


class CallTarget(msgspec.Struct, frozen=True):
    """The operation that is called, by all its names."""

    names: tuple[str, ...]
    """Every name by which it can be called."""
    local: str
    server: str
    arguments: Callable[[], Any]
    """What it is called with, read when somebody needs it."""


class StepReports:
    """The open reports of all agents, each held for `holds` seconds."""

    def __init__(self, clock: Callable[[], float], holds: float) -> None:
        self.holds = holds
        self._clock = clock
        self._open: dict[Principal, deque[StepReport]] = {}

    def add(self, who: Principal, report: StepReport) -> None:
        self._open.setdefault(who, deque(maxlen=MOST_OPEN)).append(report)

    def use(self, who: Principal, called: CallTarget) -> StepReport | None:
        """The report that this call was announced by, which is used up with it."""
        reports = self._open.get(who)
        if not reports:
            return None
        oldest = self._clock() - self.holds
        while reports and reports[0].at < oldest:
            reports.popleft()
        # One that names the operation is meant for nothing else.
        for exact in (True, False):
            for report in reports:
                if bool(report.operation) is exact and announces(report, called):
                    reports.remove(report)
                    return report
        return None

    def count(self, who: Principal) -> int:
        return len(self._open.get(who, ()))

    def forget(self, who: Principal, execution: str) -> None:
        """An execution is over: what it announced is not done any more."""
        kept = [one for one in self._open.get(who, ()) if one.execution != execution]
        if kept:
            self._open[who] = deque(kept, maxlen=MOST_OPEN)
        else:
            self._open.pop(who, None)


def announces(report: StepReport, called: CallTarget) -> bool:
    """Whether this is what was announced."""
    if report.operation:
        if report.operation not in called.names:
            return False
        return report.params is None or report.params == digest(called.arguments())
    return _named(report.hint, called) or _described(report.hint, called)


def _named(hint: ActionHint, called: CallTarget) -> bool:
    """Whether one of its names stands in the hint. A name of one word is everybody's word."""
    said = set(re.findall(r"[a-z0-9_.\-:]+", f"{hint.lower} {hint.plain}"))
    said |= {one.strip(".-:") for one in said}
    names = {name.lower() for name in called.names if re.search(r"[_.\-]", name)}
    if "_" in called.local:
        names.add(called.local)
    return bool(said & names)


def _described(hint: ActionHint, called: CallTarget) -> bool:
    """Whether the hint says its verb, or another word for it, and one of its nouns."""
    verb, *nouns = _stems(called.local) or [""]
    nouns = nouns or [one for one in _stems(called.server) if one != verb]
    words = {_stem(word) for word in words_of(hint)}
    meant = {_stem(word) for group in _SYNONYMS if verb in group for word in group} | {verb}
    return bool(words & meant) and bool(words & set(nouns))


def _stems(name: str) -> list[str]:
    return [_stem(word) for word in words_of(read(name))]


def _stem(word: str) -> str:
    """One spelling for a word and its plural."""
    form = root(word)
    if form != word or len(word) < 4:
        return form
    return _ENDINGS.sub(lambda end: "y" if end[0] == "ies" else "", word)


def digest(arguments: Any) -> bytes:
    """The same for what a client says and for what the server is told: names may be spelled in
    either way, and what UPDATE has inside `input` stands beside the rest."""
    return blake2b(canonical(_leveled(arguments)), digest_size=16).digest()


def _leveled(arguments: Any) -> Any:
    if not isinstance(arguments, Mapping):
        return arguments
    whole = {key: value for key, value in arguments.items() if not key.startswith("_")}
    inside = whole.get("input")
    if isinstance(inside, Mapping):
        del whole["input"]
        whole |= inside
    return {_snake(key): value for key, value in whole.items()}


def _snake(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()).strip(
        "_"
    )
