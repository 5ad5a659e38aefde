"""Reported actions that are not executed yet. Each report allows exactly one matching call, for a
short time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.aql.safety.patterns import ActionHint, normalize_hint
from interlock.aql.safety.risk_score import base_form, words_of
from interlock.aql.safety.store import Tier
from interlock.core.call import Principal
from interlock.trust.approvals.record import encode_canonical

MAX_OPEN: Final = 100
"""Maximum number of open reports of one principal. Further reports replace the oldest."""

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
_PLURAL_ENDINGS: Final = re.compile(r"(?:ies|(?<=s|x|z)es|(?<=ch|sh)es|(?<!s)s)$")


class StepReport(msgspec.Struct):
    """A reported action that is not executed yet."""

    execution: str
    hint: ActionHint
    at: float
    """Time of the report on the monotonic clock."""
    value: int
    """The risk score."""
    operation: str = ""
    """The operation, if the agent named it."""
    params: bytes | None = None
    """A digest of the parameters, if the agent sent them."""
    approved_tier: Tier | None = None
    """The risk tier up to which an operator approved the step."""


class CallTarget(msgspec.Struct, frozen=True):
    """The called operation with all its names."""

    names: tuple[str, ...]
    """All names that can call it."""
    local_name: str
    server: str
    arguments: Callable[[], Any]
    """Returns the arguments of the call. Read on demand."""


class StepReports:
    """The open reports of all agents, each valid for a limited time."""

    def __init__(self, clock: Callable[[], float], valid_seconds: float) -> None:
        self.valid_seconds = valid_seconds
        self._clock = clock
        self._open: dict[Principal, deque[StepReport]] = {}

    def add(self, owner: Principal, report: StepReport) -> None:
        self._open.setdefault(owner, deque(maxlen=MAX_OPEN)).append(report)

    def take_report(self, owner: Principal, target: CallTarget) -> StepReport | None:
        """Return and remove the report that announces a call. None: the call was not reported."""
        reports = self._open.get(owner)
        if not reports:
            return None
        oldest = self._clock() - self.valid_seconds
        while reports and reports[0].at < oldest:
            reports.popleft()
        # A report that names the operation matches nothing else, so it is preferred.
        for names_operation in (True, False):
            for report in reports:
                if bool(report.operation) is names_operation and announces(report, target):
                    reports.remove(report)
                    return report
        return None

    def count(self, owner: Principal) -> int:
        return len(self._open.get(owner, ()))

    def remove(self, owner: Principal, execution: str) -> None:
        """Remove the reports of an execution that has ended."""
        remaining = [
            report for report in self._open.get(owner, ()) if report.execution != execution
        ]
        if remaining:
            self._open[owner] = deque(remaining, maxlen=MAX_OPEN)
        else:
            self._open.pop(owner, None)


def announces(report: StepReport, target: CallTarget) -> bool:
    """Return whether a report announces a call."""
    if report.operation:
        if report.operation not in target.names:
            return False
        return report.params is None or report.params == digest_arguments(target.arguments())
    return _names_operation(report.hint, target) or _describes_operation(report.hint, target)


def _names_operation(hint: ActionHint, target: CallTarget) -> bool:
    """Return whether the hint contains a name of the operation. Names of a single word do not
    count.
    """
    words = set(re.findall(r"[a-z0-9_.\-:]+", f"{hint.lower} {hint.plain}"))
    words |= {word.strip(".-:") for word in words}
    names = {name.lower() for name in target.names if re.search(r"[_.\-]", name)}
    if "_" in target.local_name:
        names.add(target.local_name)
    return bool(words & names)


def _describes_operation(hint: ActionHint, target: CallTarget) -> bool:
    """Return whether the hint contains the verb, or a synonym of it, and a noun of the
    operation."""
    verb, *nouns = _stems(target.local_name) or [""]
    nouns = nouns or [noun for noun in _stems(target.server) if noun != verb]
    words = {_stem(word) for word in words_of(hint)}
    synonyms = {_stem(word) for group in _SYNONYMS if verb in group for word in group} | {verb}
    return bool(words & synonyms) and bool(words & set(nouns))


def _stems(name: str) -> list[str]:
    return [_stem(word) for word in words_of(normalize_hint(name))]


def _stem(word: str) -> str:
    """Return a common form of a word and its plural."""
    form = base_form(word)
    if form != word or len(word) < 4:
        return form
    return _PLURAL_ENDINGS.sub(lambda end: "y" if end[0] == "ies" else "", word)


def digest_arguments(arguments: Any) -> bytes:
    """Return a digest of arguments, equal for AQL parameters and the tool's arguments.

    Names may have either spelling, and members of UPDATE's `input` equal top-level members.
    """
    return blake2b(encode_canonical(_flatten_input(arguments)), digest_size=16).digest()


def _flatten_input(arguments: Any) -> Any:
    if not isinstance(arguments, Mapping):
        return arguments
    members = {key: value for key, value in arguments.items() if not key.startswith("_")}
    input_members = members.get("input")
    if isinstance(input_members, Mapping):
        del members["input"]
        members |= input_members
    return {_to_snake_case(key): value for key, value in members.items()}


def _to_snake_case(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()).strip(
        "_"
    )
