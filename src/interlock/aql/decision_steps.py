"""Decision steps that AQL adds to the authorizer: danger and trust, quotas and API limits, and the
minimum decisions of built-in operations. They make a decision stricter, never weaker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from msgspec.structs import replace

from interlock.aql.danger import TRUST_LEVELS, Trust, verdict_of
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import REGISTERED_TRUST, Operation, OperationCatalog
from interlock.aql.quotas import CONTINUE, Quotas
from interlock.aql.safety.approval_requests import PROCEED, UNBLOCK
from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.protocol.aql_terms import BUILTIN_KEY, Danger
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision

_MAX_PARAMETERS_CHARACTERS: Final = 200
_CONFIRM: Final = "danger:confirm"
_VERIFY: Final = "danger:verify"

_DECISIONS: Final = {
    Danger.DESTRUCTIVE: make_decision(
        PolicyAction.CONFIRM, _CONFIRM, "It is destructive: an operator must confirm it."
    ),
    Danger.DANGEROUS: make_decision(
        PolicyAction.VERIFY, _VERIFY, "It is dangerous: an operator must verify it."
    ),
    Danger.FORBIDDEN: make_decision(
        PolicyAction.VERIFY, _VERIFY, "It is forbidden unless an operator verifies it."
    ),
}


class DangerObserver(Protocol):
    """Called for calls that are destructive or worse, when they are allowed, held or denied."""

    def __call__(
        self, call: Call, operation: Operation, trust: Trust, outcome: str, rule: str
    ) -> None: ...


def _ignore(call: Call, operation: Operation, trust: Trust, outcome: str, rule: str) -> None:
    """Ignore the decision."""


class DangerStep:
    """The decision step for danger and trust.

    It applies to calls that wait for approval, to calls in AQL views, and to all calls if the
    config sets danger or trust levels. The need for approval follows from the effect and is the
    same in every view. The danger level only selects whose approval counts, and the trust level
    rejects calls that the server is not trusted with.
    """

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        trust: Callable[[str], Trust],
        on_decision: DangerObserver = _ignore,
        has_declared_trust: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """
        Args:
            operation_catalog: returns the current operation catalog.
            trust: returns the trust level of a server, by its key.
            has_declared_trust: returns True if the config sets the trust level of a server. A level
                from the config applies in every view. Otherwise trust matters only for
                self-registered servers in AQL views.
        """
        self._operation_catalog = operation_catalog
        self._trust = trust
        self._on_decision = on_decision
        self._has_declared_trust = has_declared_trust
        self._harmless: set[object] = set()
        """Tools that need no check. Nearly all calls are of these tools."""
        self._cached: dict[object, tuple[Operation, Trust, Danger, bool]] = {}
        """Of tools of the current operation catalog: the operation, the trust in its server, the
        danger, and True if the config sets that trust."""
        self._cached_catalog: OperationCatalog | None = None

    def clear_cache(self) -> None:
        """Clear cached values after a change of danger or trust levels."""
        self._harmless.clear()
        self._cached_catalog = None

    def __call__(self, call: Call, policy_decision: Decision) -> Decision:
        """Return the stricter of the policy's decision and the decision by danger.

        Raises AqlError.
        """
        if call.route in self._harmless or call.upstream == BUILTIN_KEY or call.route is None:
            return policy_decision
        operation_catalog = self._operation_catalog()
        if operation_catalog is not self._cached_catalog:
            self._cached.clear()
            self._cached_catalog = operation_catalog
        entry = self._cached.get(call.route)
        if entry is None:
            operation = operation_catalog.for_tool(cast("Tool", call.route))
            trust = self._trust(operation.server)
            danger = effective_danger(operation, trust)
            entry = operation, trust, danger, self._has_declared_trust(operation.server)
            self._cached[call.route] = entry
        operation, trust, danger, declared = entry
        if operation.tool.effect.choices and call.effect != operation.tool.effect_name:
            # The arguments give this call another effect than its tool has.
            if operation.origins.get("danger") != "override":
                danger = min(danger, Danger.REVERSIBLE)
        elif danger is Danger.SAFE and trust != TRUST_LEVELS[0]:
            if len(self._harmless) >= _MAX_PARAMETERS_CHARACTERS * 100:
                self._harmless.clear()
            self._harmless.add(call.route)
            return policy_decision
        try:
            # Trust can reject a call only if the config sets it, or for low trust in AQL views.
            is_low_trust = call.view is not None and TRUST_LEVELS.index(
                trust
            ) <= TRUST_LEVELS.index(REGISTERED_TRUST)
            if declared or is_low_trust:
                self._check_trust(operation, danger, trust)
            stricter = self._apply_danger(operation, danger, policy_decision)
        except AqlError as error:
            self._on_decision(call, operation, trust, "denied", error.code)
            raise
        if danger >= Danger.DESTRUCTIVE and (
            call.view is not None or stricter is not policy_decision
        ):
            outcome = "allowed"
            if stricter.needs_approval:
                outcome = "confirmed" if call.approval_id else "held"
            self._on_decision(call, operation, trust, outcome, stricter.rule)
        return stricter

    def _check_trust(self, operation: Operation, danger: Danger, trust: Trust) -> None:
        """Reject an operation that the server is not trusted with. Raises AqlError."""
        if trust == TRUST_LEVELS[0]:
            raise AqlError(
                "PERMISSION_TRUST_LEVEL_INSUFFICIENT",
                f"The server of '{operation.name}' is untested: its operations can be listed but "
                "not called. Ask the operator to trust it.",
                {
                    "operation": operation.name,
                    "required_trust": minimum_trust(danger),
                    "actual_trust": trust,
                    "danger_level": danger.label,
                },
            )
        if verdict_of(danger, trust) == "deny":
            required_trust = minimum_trust(danger)
            raise AqlError(
                "PERMISSION_DANGER_LEVEL_DENIED",
                f"'{operation.name}' is {danger.label}, but the trust level of its server is "
                f"'{trust}'. '{required_trust}' is required.",
                {
                    "operation": operation.name,
                    "danger_level": danger.label,
                    "adapter_trust": trust,
                    "minimum_trust_required": required_trust,
                    "reasons": list(operation.reasons),
                },
            )

    @staticmethod
    def _apply_danger(operation: Operation, danger: Danger, policy_decision: Decision) -> Decision:
        minimum = _DECISIONS.get(danger)
        if minimum is None or minimum.action <= policy_decision.action:
            return policy_decision
        # A rule that names the tool takes precedence. If the policy allows a call, it waits for
        # approval only if the config itself sets its danger.
        declared = operation.origins.get("danger") == "override"
        if policy_decision.names_tool or not (policy_decision.needs_approval or declared):
            return policy_decision
        if policy_decision.needs_approval and not policy_decision.rule.startswith("default:"):
            # The operator sees the rule of the config and its reason.
            return replace(policy_decision, action=minimum.action)
        return minimum


def effective_danger(operation: Operation, trust: Trust) -> Danger:
    """Return the danger level of an operation on a server with this trust.

    The names of tools of self-registered servers are not trusted. There, an operation is safe only
    if it is declared read-only, or set to safe in the config.
    """
    danger = operation.danger
    if (
        danger is Danger.SAFE
        and TRUST_LEVELS.index(trust) <= TRUST_LEVELS.index(REGISTERED_TRUST)
        and operation.tool.mutable
        and operation.origins.get("danger") != "override"
    ):
        return Danger.REVERSIBLE
    return danger


def minimum_trust(danger: Danger) -> Trust:
    """Return the lowest trust level at which an operation of this danger level may be called."""
    return next(
        trust for trust in TRUST_LEVELS if verdict_of(danger, trust) in ("allow", "confirm")
    )


def audit_detail(call: Call, operation: Operation, trust: Trust, rule: str) -> str:
    """Return the detail of a journal entry. It contains the names of parameters, never values."""
    caller = "" if call.caller is None else call.caller.name
    parameter_names = (
        ",".join(call.decoded_arguments)[:_MAX_PARAMETERS_CHARACTERS]
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
        f"parameters:{parameter_names}" if parameter_names else "",
    ]
    return " ".join(part for part in words if part)


class ChangeJournal(Protocol):
    """The part of the journal that is used here."""

    def record_change(self, kind: str, name: str, outcome: str, detail: str = "") -> None: ...


def journal_observer(audit: ChangeJournal) -> DangerObserver:
    """Return an observer that records every destructive or more dangerous call in the journal."""

    def note(call: Call, operation: Operation, trust: Trust, outcome: str, rule: str) -> None:
        detail = audit_detail(call, operation, trust, rule)
        audit.record_change("danger", operation.name, outcome, detail)

    return note


# Calls outside of views. In a view the stage has already counted the call. An approved call arrives
# with its plain tool name and is counted here.

DecisionFunction = Callable[[Call, Decision], Decision]
"""Makes a decision stricter. Raises InterlockError."""

QUOTA_PAUSED: Final = make_decision(
    PolicyAction.CONFIRM, "aql:quota", "A quota is paused: an operator must approve each call."
)


class CallLimitStep:
    """The decision step for danger, quotas and API limits of all upstream tools, if any are
    configured.
    """

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        quotas: Quotas,
        decide_danger: DecisionFunction,
        *,
        danger_everywhere: bool,
    ) -> None:
        """
        Args:
            decide_danger: the decision by danger.
            danger_everywhere: True if the config sets the danger of calls that need no approval.
        """
        self._operation_catalog = operation_catalog
        self._quotas = quotas
        self._decide_danger = decide_danger
        self._danger_everywhere = danger_everywhere

    @property
    def applies_everywhere(self) -> bool:
        """True if the step applies to calls outside of views."""
        return self._danger_everywhere or self._quotas.configured

    def __call__(self, call: Call, policy_decision: Decision) -> Decision:
        if policy_decision.needs_approval or call.view is not None or self._danger_everywhere:
            policy_decision = self._decide_danger(call, policy_decision)
        if call.operation_request is not None or call.route is None or not self._quotas.configured:
            return policy_decision
        if policy_decision.action is PolicyAction.DENY or (
            policy_decision.needs_approval and not call.approval_id
        ):
            # The call is not sent now.
            return policy_decision
        operation = self._operation_catalog().for_tool(cast("Tool", call.route))
        return policy_decision if self._quotas.admit_plain(call, operation) else QUOTA_PAUSED


# The minimum decisions of built-in operations, whatever the rules allow.

FLOORS: Final[dict[str, Decision]] = {
    "execute_agent": make_decision(
        PolicyAction.CONFIRM, "default:aql", "A started agent acts on its own."
    ),
    UNBLOCK: make_decision(
        PolicyAction.VERIFY, "aql:unblock", "An operator must unblock the agent."
    ),
    CONTINUE: make_decision(PolicyAction.CONFIRM, "aql:quota", "A quota is paused."),
    PROCEED: make_decision(
        PolicyAction.CONFIRM, "aql:proceed", "An operator must approve this step."
    ),
}
FIRM_FLOORS: Final = frozenset({UNBLOCK, PROCEED, CONTINUE})
"""Operations whose minimum decision no rule of the config can lower."""
