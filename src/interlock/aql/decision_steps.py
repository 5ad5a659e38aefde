"""What AQL adds to the authorizer's decision about a call: danger and trust, quotas and API limits,
and the least that the node's own operations need. A decision gets stricter here, never softer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from msgspec.structs import replace

from interlock.aql.danger import TRUST, Trust, matrix
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import REGISTERED, Operation, OperationCatalog
from interlock.aql.quotas import CONTINUE, Quotas
from interlock.aql.safety.approval_requests import PROCEED, UNBLOCK
from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.protocol.aql_terms import BUILTIN_KEY, Danger
from interlock.trust.policy.decision import Decision, PolicyAction, decision

_MOST_NAMES: Final = 200
_CONFIRM: Final = "danger:confirm"
_VERIFY: Final = "danger:verify"

_HELD: Final = {
    Danger.DESTRUCTIVE: decision(
        PolicyAction.CONFIRM, _CONFIRM, "It destroys something: a human confirms it."
    ),
    Danger.DANGEROUS: decision(
        PolicyAction.VERIFY, _VERIFY, "It is dangerous: a human verifies it."
    ),
    Danger.FORBIDDEN: decision(
        PolicyAction.VERIFY, _VERIFY, "It is forbidden unless a human verifies it."
    ),
}


class DangerObserver(Protocol):
    """Hears of calls that are destructive or worse: allowed, held or denied."""

    def __call__(
        self, call: Call, operation: Operation, trust: Trust, outcome: str, rule: str
    ) -> None: ...


def _nobody(call: Call, operation: Operation, trust: Trust, outcome: str, rule: str) -> None:
    """Where nobody wants to know."""


class DangerStep:
    """Asked about every call that waits for approval, every call in an AQL view, and every call
    where the config declares danger or trust.

    What waits is decided by the effect, the same in every view. Danger only chooses whose approval
    counts, and trust refuses what a server may not be asked for.
    """

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        trust: Callable[[str], Trust],
        note: DangerObserver = _nobody,
        declared: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """
        Args:
            operation_catalog: Returns the current one.
            trust: In a server, by its key.
            declared: Whether the config says how far a server is trusted. Then that counts in every
                view; else only for servers that nobody chose, and only in AQL views.
        """
        self._operation_catalog = operation_catalog
        self._trust = trust
        self._note = note
        self._declared = declared
        self._harmless: set[object] = set()
        """Tools about which there is nothing to weigh. Nearly all calls are of one of them."""
        self._known: dict[object, tuple[Operation, Trust, Danger, bool]] = {}
        """Of tools of the current operation catalog: the operation, the trust in its server, the
        danger, and whether the config declares that trust."""
        self._known_of: OperationCatalog | None = None

    def forget(self) -> None:
        """What is dangerous, or who is trusted, may be something else from now on."""
        self._harmless.clear()
        self._known_of = None

    def __call__(self, call: Call, decided: Decision) -> Decision:
        """The stricter of what the policy says and what the danger asks for. Raises AqlError."""
        if call.route in self._harmless or call.upstream == BUILTIN_KEY or call.route is None:
            return decided
        operation_catalog = self._operation_catalog()
        if operation_catalog is not self._known_of:
            self._known.clear()
            self._known_of = operation_catalog
        known = self._known.get(call.route)
        if known is None:
            operation = operation_catalog.of(cast("Tool", call.route))
            trust = self._trust(operation.server)
            danger = danger_on(operation, trust)
            known = operation, trust, danger, self._declared(operation.server)
            self._known[call.route] = known
        operation, trust, danger, declared = known
        if operation.tool.effect.choices and call.effect != operation.tool.effect_name:
            # By its arguments this call is not what others of its tool are.
            if operation.origins.get("danger") != "override":
                danger = min(danger, Danger.REVERSIBLE)
        elif danger is Danger.SAFE and trust != TRUST[0]:
            if len(self._harmless) >= _MOST_NAMES * 100:
                self._harmless.clear()
            self._harmless.add(call.route)
            return decided
        try:
            # Whether the trust in the server refuses anything of this call.
            counts = call.view is not None and TRUST.index(trust) <= TRUST.index(REGISTERED)
            if declared or counts:
                self._refuse(operation, danger, trust)
            found = self._weigh(operation, danger, decided)
        except AqlError as refused:
            self._note(call, operation, trust, "denied", refused.code)
            raise
        if danger >= Danger.DESTRUCTIVE and (call.view is not None or found is not decided):
            outcome = "allowed"
            if found.needs_approval:
                outcome = "confirmed" if call.approval_id else "held"
            self._note(call, operation, trust, outcome, found.rule)
        return found

    def _refuse(self, operation: Operation, danger: Danger, trust: Trust) -> None:
        """Raises AqlError for what a server so trusted may not be asked for."""
        if trust == TRUST[0]:
            raise AqlError(
                "PERMISSION_TRUST_LEVEL_INSUFFICIENT",
                f"Nobody has tried the server of '{operation.name}' yet: its operations can be "
                "looked up, not called. Ask the operator to trust it.",
                {
                    "operation": operation.name,
                    "required_trust": least_trust(danger),
                    "actual_trust": trust,
                    "danger_level": danger.label,
                },
            )
        if matrix(danger, trust) == "deny":
            least = least_trust(danger)
            raise AqlError(
                "PERMISSION_DANGER_LEVEL_DENIED",
                f"'{operation.name}' is {danger.label}, and its server is trusted only as "
                f"'{trust}'. It takes '{least}'.",
                {
                    "operation": operation.name,
                    "danger_level": danger.label,
                    "adapter_trust": trust,
                    "minimum_trust_required": least,
                    "reasons": list(operation.reasons),
                },
            )

    @staticmethod
    def _weigh(operation: Operation, danger: Danger, decided: Decision) -> Decision:
        needed = _HELD.get(danger)
        if needed is None or needed.action <= decided.action:
            return decided
        # Who wrote a rule that names the tool has thought about it. What the policy lets run waits
        # only where the config itself declares it dangerous.
        declared = operation.origins.get("danger") == "override"
        if decided.names_tool or not (decided.needs_approval or declared):
            return decided
        if decided.needs_approval and not decided.rule.startswith("default:"):
            # Whoever approves is told the rule of the config, and its reason.
            return replace(decided, action=needed.action)
        return needed


def danger_on(operation: Operation, trust: Trust) -> Danger:
    """The level of an operation on a server so trusted. A server that nobody chose is not believed
    a name: there only what is known to read is safe, or what the config calls so."""
    danger = operation.danger
    if (
        danger is Danger.SAFE
        and TRUST.index(trust) <= TRUST.index(REGISTERED)
        and operation.tool.mutable
        and operation.origins.get("danger") != "override"
    ):
        return Danger.REVERSIBLE
    return danger


def least_trust(danger: Danger) -> Trust:
    """From which trust on something of this level may be called at all."""
    return next(one for one in TRUST if matrix(danger, one) in ("allow", "confirm"))


def audit_words(call: Call, operation: Operation, trust: Trust, rule: str) -> str:
    """The detail of a journal entry about it. Of parameters it has the names, never a value."""
    caller = "" if call.caller is None else call.caller.name
    given = (
        ",".join(call.decoded_arguments)[:_MOST_NAMES]
        if isinstance(call.decoded_arguments, dict)
        else ""
    )
    words = [
        f"adapter:{operation.server}",
        f"danger:{operation.danger.label}",
        f"trust:{trust}",
        f"rule:{rule}",
        f"caller:{caller[:100]}",
        f"approval:{call.approval_id}" if call.approval_id else "",
        f"parameters:{given}" if given else "",
    ]
    return " ".join(word for word in words if word)


class ChangeJournal(Protocol):
    """The journal, as far as it is needed here."""

    def record_change(self, what: str, name: str, word: str, detail: str = "") -> None: ...


def journalled(audit: ChangeJournal) -> DangerObserver:
    """Notes every attempt at something destructive or worse in the journal."""

    def note(call: Call, operation: Operation, trust: Trust, outcome: str, rule: str) -> None:
        detail = audit_words(call, operation, trust, rule)
        audit.record_change("danger", operation.name, outcome, detail)

    return note


# -- Calls outside of views. In a view the stage has counted a call before it gets here. A call that
# a human let through comes here by its plain name, and is counted then.

DecisionFunction = Callable[[Call, Decision], Decision]
"""Makes a decision stricter. Raises InterlockError."""

PAUSED: Final = decision(
    PolicyAction.CONFIRM, "aql:quota", "A quota is used up so far: a human lets each call go on."
)


class CallLimitStep:
    """Decides about every call of an upstream tool by danger, quotas and API limits, where there
    are any."""

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        quotas: Quotas,
        weigh: DecisionFunction,
        *,
        danger_everywhere: bool,
    ) -> None:
        """
        Args:
            weigh: The decision by danger.
            danger_everywhere: Whether the config declares the danger of calls that do not wait.
        """
        self._operation_catalog = operation_catalog
        self._quotas = quotas
        self._weigh = weigh
        self._danger_everywhere = danger_everywhere

    @property
    def everywhere(self) -> bool:
        """Whether calls outside of views have to be asked about at all."""
        return self._danger_everywhere or self._quotas.configured

    def __call__(self, call: Call, decided: Decision) -> Decision:
        if decided.needs_approval or call.view is not None or self._danger_everywhere:
            decided = self._weigh(call, decided)
        if call.operation_request is not None or call.route is None or not self._quotas.configured:
            return decided
        if decided.action is PolicyAction.DENY or (decided.needs_approval and not call.approval_id):
            # It does not go out now.
            return decided
        operation = self._operation_catalog().of(cast("Tool", call.route))
        return decided if self._quotas.admit_plain(call, operation) else PAUSED


# -- The least that the node's own operations need before they run, whatever the rules allow

FLOORS: Final[dict[str, Decision]] = {
    "execute_agent": decision(
        PolicyAction.CONFIRM, "default:aql", "An agent that is started acts by itself."
    ),
    UNBLOCK: decision(PolicyAction.VERIFY, "aql:unblock", "A human has to let it act again."),
    CONTINUE: decision(PolicyAction.CONFIRM, "aql:quota", "A quota is used up so far."),
    PROCEED: decision(PolicyAction.CONFIRM, "aql:proceed", "A human has to let this step be done."),
}
FIRM_FLOORS: Final = frozenset({UNBLOCK, PROCEED, CONTINUE})
"""Operations that no rule of the config frees."""
