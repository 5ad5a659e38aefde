"""The resolver: the six phases that select the driver of a call (AIP-30). Equal inputs lead to
equal decisions.

1. drivers that implement the contract in its version, meet its constraints and take the inputs 2.
drivers that are able to serve: installed, right version, right machine, signed in, healthy 3.
drivers that are allowed to serve: policy tags, then region 4. the pinned driver, if there is a pin
5. the order of the remaining drivers 6. the first driver is bound to the call (`bind`)

All facts are arguments, including the time. A decision contains the reason against every other
driver, for `drivers explain` and the journal.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from interlock import errors
from interlock.drivers.binding import version_problem
from interlock.drivers.limits import effective_cost
from interlock.drivers.translation import BoundEntry
from interlock.errors import Failure, InterlockError
from interlock.manifests.model import (
    UNIVERSAL_REGION,
    Cost,
    DriverManifest,
    ImplementedContract,
    MachineRequirements,
    ToolContract,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.timestamps import format_utc_ms

# -- Input of the resolver: drivers and their condition, the machine, and the selection policy.


class DriverCondition(Struct):
    """The current condition of a driver."""

    rejection: str = ""
    """Why the driver must not be used: its binding or its registration failed. Empty: it may be
    used."""
    install_failed: str = ""
    version_problem: str = ""
    authed: bool = True
    auth_problem: str = ""
    """Why no operator is signed in, and what to do, in full sentences."""
    login_only: bool = False
    """True if the driver works without a sign-in."""
    health_failed_at: float | None = None
    health_passed_at: float | None = None
    circuit_open: bool = False


class Candidate(Struct, frozen=True):
    """A driver that declares that it implements the contract."""

    driver: DriverManifest
    entry: ImplementedContract
    condition: DriverCondition


class Machine(Struct, frozen=True):
    """The machine that `requires` is compared with, in the terms of AIP-32 (linux, x64)."""

    os: str
    arch: str
    disk_mb: int
    memory_mb: int


class SelectionPolicy(Struct, frozen=True):
    """The policy for selecting drivers."""

    region: str | None = None
    strict_region: bool = False
    """True if global drivers are rejected when `region` is set."""
    forbid: tuple[str, ...] = ()
    """A driver with any of these tags is rejected."""
    require: tuple[str, ...] = ()
    """A driver that lacks one of these tags is rejected."""
    allow: tuple[str, ...] = ()
    """If not empty: a driver with any other tag is rejected."""
    pins: dict[str, str] = field(default_factory=dict)
    """Contract (id or id@major) → driver (id or id@major)."""
    trusted_tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tag → drivers whose claim to the tag is trusted. A tag that is not listed is trusted from
    every driver."""


class Rejection(Struct, frozen=True):
    """A driver that was not selected, with the reason."""

    driver: str
    """id@major"""
    phase: int
    reason: str
    code: str
    """The error code if no other driver can serve the call."""


def trusted_policy_tags(driver: DriverManifest, workspace: SelectionPolicy) -> tuple[str, ...]:
    """Return the policy tags of a driver that are trusted."""
    return tuple(tag for tag in driver.policy_tags if _is_trusted(tag, driver, workspace))


def tag_warnings(driver: DriverManifest, workspace: SelectionPolicy) -> list[str]:
    """Return a warning for each policy tag of a driver that is not trusted."""
    return [
        f"driver {driver.id}: it claims the tag {tag!r}, but drivers.policy.trusted_tags does not "
        "list it for this tag. The tag is ignored."
        for tag in driver.policy_tags
        if not _is_trusted(tag, driver, workspace)
    ]


def _is_trusted(tag: str, driver: DriverManifest, workspace: SelectionPolicy) -> bool:
    trusted = workspace.trusted_tags.get(tag)
    return trusted is None or driver.id in trusted or driver.key in trusted


# -- Phase 5: the order of drivers that could all serve a call.
#
# The contract's default first, then the cheaper driver, then the nearer kind, then the driver that
# was last seen healthy, then the name. Prices are compared within one currency. Drivers without a
# price in that currency follow those with one, by their cost class.

KINDS: Final = ("builtin", "sdk", "http", "mcp", "cli")
"""From the nearest to the farthest kind."""
COST_CLASSES: Final = ("trivial", "metered", "expensive")
CURRENCY: Final = "USD"
"""Currency of prices without a currency. Units are millicents."""

_KIND: Final = {kind: place for place, kind in enumerate(KINDS)}
_CLASS: Final = {word: place for place, word in enumerate(COST_CLASSES)}


def rank(contract: ToolContract, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates, best first."""
    unordered = list(candidates)
    costs = [effective_cost(contract, candidate.driver, candidate.entry) for candidate in unordered]
    currency = _common_currency(costs)
    sort_keys = [
        _key(contract, candidate, cost, currency)
        for candidate, cost in zip(unordered, costs, strict=True)
    ]
    positions = sorted(range(len(unordered)), key=lambda place: sort_keys[place])
    return [unordered[place] for place in positions]


def _key(
    contract: ToolContract, candidate: Candidate, cost: Cost, currency: str
) -> tuple[Any, ...]:
    driver, passed = candidate.driver, candidate.condition.health_passed_at
    price = _comparable(cost, currency)
    return (
        contract.default_implementation not in (driver.id, driver.key),
        price is None,
        _CLASS[cost.cost_class or "trivial"] if price is None else price,
        _KIND[driver.kind],
        passed is None,
        0.0 if passed is None else -passed,
        driver.id,
        # Of two majors of one driver the newer one comes first.
        -driver.major,
        driver.version,
        candidate.entry.line,
    )


def _comparable(cost: Cost, currency: str) -> float | None:
    """Return a price in the common currency, or None. A price of zero is comparable in every
    currency."""
    units = cost.units_per_call
    if units is None or (units and _currency(cost) != currency):
        return None
    return units


def _common_currency(costs: list[Cost]) -> str:
    """Return the currency of most prices."""
    currency_counts = Counter(_currency(cost) for cost in costs if cost.units_per_call)
    return min(
        currency_counts,
        key=lambda currency: (-currency_counts[currency], currency),
        default=CURRENCY,
    )


def _currency(cost: Cost) -> str:
    return cost.currency.upper() or CURRENCY


DEFAULT_HEALTH_SECONDS: Final = 300.0
"""The time for which a failure counts for a driver without `health_check.every`."""
NOT_PINNED: Final = "not_pinned"
_CLOSEST: Final = 5
# If all drivers fail for the same reason, this reason is the error of the call.
_SPECIFIC: Final = {
    row.name: row
    for row in (
        errors.AUTH_REQUIRED,
        errors.INPUT_UNSUPPORTED,
        errors.INSTALL_FAILED,
        errors.TOOL_UNAVAILABLE,
        errors.VERSION_MISMATCH,
    )
}


class DriverChoice(Struct, frozen=True):
    """The decision of the resolver: a driver, or why there is none."""

    contract: str
    """Id of the contract."""
    selected: Candidate | None
    order: tuple[Candidate, ...]
    """All drivers that could serve the call, best first."""
    rejected: tuple[Rejection, ...]
    """All other drivers, by phase and id."""
    total: int
    passed_capability: int
    passed_policy: int
    pinned: str | None
    failure: Failure | None
    message: str
    version: str = ""
    """Version of the contract."""
    fields: tuple[str, ...] = ()
    """Inputs that prevent a driver from serving the call."""
    retry_after_ms: int | None = None
    """Set if no driver can serve the call and an unhealthy driver will be tried again."""
    until: float | None = None
    """Time after which the decision may change by itself."""

    def error(self) -> InterlockError:
        """Return the error for the caller if there is no driver."""
        assert self.failure is not None
        closest = sorted(self.rejected, key=lambda rejection: -rejection.phase)[:_CLOSEST]
        data: dict[str, Any] = {
            "contract": self.contract,
            "rejected": [
                {
                    "driver": rejection.driver,
                    "phase": rejection.phase,
                    "reason": rejection.reason,
                    "code": rejection.code,
                }
                for rejection in closest
            ],
        }
        if self.pinned is not None:
            data["pinned"] = self.pinned
        if self.fields and self.failure is errors.INPUT_UNSUPPORTED:
            data["fields"] = list(self.fields)
        if self.retry_after_ms is not None:
            data["retry_after_ms"] = self.retry_after_ms
        return InterlockError(self.failure, self.message, data)


class BoundCall(Struct, frozen=True):
    """A call bound to its driver (phase 6)."""

    driver: DriverManifest
    input: dict[str, Any]
    """Inputs in the driver's names."""
    context: dict[str, Any] = field(default_factory=dict)


def bind(
    candidate: Candidate,
    entry: BoundEntry,
    inputs: Mapping[str, Any],
    context: Mapping[str, Any] | None = None,
) -> BoundCall:
    """Bind a call to the selected driver. Raises InterlockError."""
    return BoundCall(candidate.driver, entry.driver_input(inputs), dict(context or {}))


def route(
    contract: ToolContract,
    candidates: Sequence[Candidate],
    inputs: Collection[str],
    *,
    workspace: SelectionPolicy,
    machine: Machine,
    pinned: str | None = None,
    now: float,
) -> DriverChoice:
    """Select a driver for a call (AIP-30, phases 1 to 5).

    Args:
        inputs: names of the inputs. Their values do not matter.
        pinned: the driver that the call is pinned to.
        now: wall clock.
    """
    rejected: list[Rejection] = []
    suitable = _filter(
        candidates, 1, rejected, lambda candidate: _check_contract(contract, candidate, inputs)
    )
    able = _filter(suitable, 2, rejected, lambda candidate: _check_ability(candidate, machine, now))
    allowed = _filter(
        able, 3, rejected, lambda candidate: _check_policy(candidate.driver, workspace)
    )
    workspace_pin = workspace.pins.get(contract.key) or workspace.pins.get(contract.id)
    pin = (
        _narrower_pin(workspace_pin, pinned)
        if workspace_pin and pinned
        else workspace_pin or pinned
    )
    contradicted = pin is None and pinned is not None
    pin = pin or workspace_pin
    remaining = allowed
    if pin is not None:
        # A pinned driver must serve the call. No other driver replaces it.
        remaining = _filter(
            allowed, 4, rejected, lambda candidate: _check_pin(candidate.driver, pin, contradicted)
        )
    order = tuple(rank(contract, remaining))
    rejected.sort(key=lambda rejection: (rejection.phase, rejection.driver, rejection.reason))
    decision = DriverChoice(
        contract.id,
        order[0] if order else None,
        order,
        tuple(rejected),
        len(candidates),
        len(able),
        len(allowed),
        pin,
        None,
        f"{contract.id} goes to {order[0].driver.key}." if order else "",
        contract.version,
        until=_until(candidates, now),
    )
    if order:
        return decision
    fields = tuple(
        sorted({name for candidate in candidates for name in _dropped(candidate, inputs)})
    )
    contradicting_pin = pinned if contradicted else None
    failure, message = _failure(contract, decision, contradicting_pin, workspace, fields)
    return replace(
        decision,
        failure=failure,
        message=message,
        fields=fields,
        retry_after_ms=_retry_after(suitable, machine, workspace, pin, now),
    )


_Refusal = tuple[str, str]
"""The reason of a rejection and its error code."""


def _filter(
    candidates: Iterable[Candidate],
    phase: int,
    rejected: list[Rejection],
    check: Callable[[Candidate], _Refusal | None],
) -> list[Candidate]:
    remaining = []
    for candidate in candidates:
        reason = check(candidate)
        if reason is None:
            remaining.append(candidate)
        else:
            rejected.append(Rejection(candidate.driver.key, phase, *reason))
    return remaining


# -- the phases


def _check_contract(
    contract: ToolContract, candidate: Candidate, inputs: Collection[str]
) -> _Refusal | None:
    driver, constraints = candidate.driver, contract.driver_constraints
    unavailable = errors.TOOL_UNAVAILABLE.name
    if candidate.condition.rejection:
        return candidate.condition.rejection, unavailable
    outdated = version_problem(contract, candidate.entry)
    if outdated:
        return outdated, unavailable
    for name in (driver.id, driver.key, driver.kind):
        if name in constraints.forbid:
            return f"the contract excludes {name}", errors.NO_ROUTE.name
    if constraints.require_kind and driver.kind not in constraints.require_kind:
        kinds = " or ".join(constraints.require_kind)
        return f"the contract requires a driver of kind {kinds}", errors.NO_ROUTE.name
    unsupported = _dropped(candidate, inputs)
    if unsupported:
        return (
            f"it does not support the input {', '.join(unsupported)}",
            errors.INPUT_UNSUPPORTED.name,
        )
    return None


def _dropped(candidate: Candidate, inputs: Collection[str]) -> list[str]:
    return [name for name in candidate.entry.drop_inputs if name in inputs]


def _check_ability(candidate: Candidate, machine: Machine, now: float) -> _Refusal | None:
    condition = candidate.condition
    if condition.install_failed:
        return condition.install_failed, errors.INSTALL_FAILED.name
    if condition.version_problem:
        return condition.version_problem, errors.VERSION_MISMATCH.name
    lacking = _lacking(candidate.driver.requires, machine)
    if lacking:
        return lacking, errors.TOOL_UNAVAILABLE.name
    if not condition.authed and not condition.login_only:
        return condition.auth_problem or "it is not signed in", errors.AUTH_REQUIRED.name
    if _unhealthy_until(candidate, now) is not None:
        return "its last health check failed", errors.TOOL_UNAVAILABLE.name
    if condition.circuit_open:
        return "its circuit breaker is open after repeated failures", errors.TOOL_UNAVAILABLE.name
    return None


def _lacking(requires: MachineRequirements, machine: Machine) -> str:
    if requires.os and machine.os not in requires.os:
        return f"it requires {' or '.join(requires.os)}, this machine is {machine.os}"
    if requires.arch and machine.arch not in requires.arch:
        return f"it requires {' or '.join(requires.arch)}, this machine is {machine.arch}"
    if machine.disk_mb < requires.min_disk_mb:
        return f"it needs {requires.min_disk_mb} MB of disk, {machine.disk_mb} MB are free"
    if machine.memory_mb < requires.min_memory_mb:
        return (
            f"it needs {requires.min_memory_mb} MB of memory, the machine has "
            f"{machine.memory_mb} MB"
        )
    return ""


def _unhealthy_until(candidate: Candidate, now: float) -> float | None:
    """Return until when a failed health check counts. None: no failure counts."""
    failed, passed = candidate.condition.health_failed_at, candidate.condition.health_passed_at
    if failed is None or (passed is not None and passed >= failed):
        return None
    check = candidate.driver.health_check
    until = failed + (DEFAULT_HEALTH_SECONDS if check is None else check.every)
    return until if now < until else None


def _check_policy(driver: DriverManifest, workspace: SelectionPolicy) -> _Refusal | None:
    violation = errors.POLICY_VIOLATION.name
    # A claimed tag always counts against a driver. Only trusted tags count in its favour.
    forbidden = [tag for tag in driver.policy_tags if tag in workspace.forbid]
    if forbidden:
        return f"the policy forbids the tag {forbidden[0]}", violation
    trusted = trusted_policy_tags(driver, workspace)
    missing = [tag for tag in workspace.require if tag not in trusted]
    if missing:
        return f"the policy requires the tag {missing[0]}", violation
    other_tags = [tag for tag in driver.policy_tags if tag not in workspace.allow]
    if workspace.allow and other_tags:
        return f"the policy does not allow the tag {other_tags[0]}", violation
    region = workspace.region
    if region is None or region in driver.region:
        return None
    if UNIVERSAL_REGION in driver.region and not workspace.strict_region:
        return None
    return (
        f"its region is {', '.join(driver.region)}, not {region}",
        errors.REGION_MISMATCH.name,
    )


def _check_pin(driver: DriverManifest, pin: str, contradicted: bool) -> _Refusal | None:
    if contradicted:
        return f"the workspace pins the contract to {pin}, the call pins another driver", NOT_PINNED
    return None if is_pinned(driver, pin) else (f"the contract is pinned to {pin}", NOT_PINNED)


def _narrower_pin(pin: str, other: str) -> str | None:
    """Return the more specific of two compatible pins. None: they contradict each other."""
    if other in (pin, pin.partition("@")[0]):
        return pin
    return other if other.partition("@")[0] == pin else None


def is_pinned(driver: DriverManifest, pin: str) -> bool:
    """Return whether a pin names this driver: its id, or one major version of it."""
    return pin in (driver.id, driver.key)


# -- when no driver remains


def _failure(
    contract: ToolContract,
    decision: DriverChoice,
    contradicting_pin: str | None,
    workspace: SelectionPolicy,
    fields: tuple[str, ...],
) -> tuple[Failure, str]:
    """Return the error and its message if no driver can serve the call.

    Args:
        against: the pin of a call that contradicts the workspace's pin.
    """
    id, rejected = contract.id, decision.rejected
    if contradicting_pin is not None:
        return (
            errors.POLICY_VIOLATION,
            f"This workspace pins {id} to {decision.pinned}. Remove the pin "
            f"{contradicting_pin} from the call.",
        )
    row = _shared_reason(rejected)
    if row is errors.INPUT_UNSUPPORTED:
        names = ", ".join(fields)
        return row, f"No driver of {id} supports the input {names}. Call it without."
    if decision.pinned is not None:
        return _pin_failed(id, decision.pinned, rejected)
    if not rejected:
        return errors.NO_ROUTE, f"No driver implements {id}. Add one: `interlock drivers new`."
    reasons = _with_period(
        "; ".join(_describe_rejection(rejection) for rejection in reversed(rejected[-_CLOSEST:]))
    )
    if any(rejection.code == errors.REGION_MISMATCH.name for rejection in rejected):
        return (
            errors.NO_ROUTE_IN_REGION,
            f"No driver of {id} is in the region {workspace.region}. {reasons}",
        )
    if row is errors.AUTH_REQUIRED:
        driver = rejected[-1].driver.partition("@")[0]
        if _mentions(driver, rejected[-1].reason):
            # The driver's own message, which is the same everywhere.
            return row, rejected[-1].reason
        return row, f"{id} needs a sign-in. Run `interlock drivers login {driver}`."
    return row or errors.NO_ROUTE, f"No driver can serve {id} now. {reasons}"


def _describe_rejection(rejection: Rejection) -> str:
    """Return the reason against a driver. Some reasons are sentences that already name the
    driver."""
    reason, id = rejection.reason.removesuffix("."), rejection.driver.partition("@")[0]
    return reason if _mentions(id, reason) else f"{rejection.driver}: {reason}"


def _mentions(id: str, reason: str) -> bool:
    """Return whether a reason names the driver as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", reason) is not None


def _with_period(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _shared_reason(rejected: Sequence[Rejection]) -> Failure | None:
    """Return the error that all rejections have in common, except those by the contract itself."""
    codes = {rejection.code for rejection in rejected if rejection.code != errors.NO_ROUTE.name}
    return _SPECIFIC.get(codes.pop()) if len(codes) == 1 else None


def _pin_failed(id: str, pin: str, rejected: Sequence[Rejection]) -> tuple[Failure, str]:
    pinned = [
        rejection
        for rejection in rejected
        if pin in (rejection.driver, rejection.driver.partition("@")[0])
    ]
    if not pinned:
        return (
            errors.PINNED_PROVIDER_UNAVAILABLE,
            f"{id} is pinned to {pin}, but no such driver implements it. Check drivers.pins.",
        )
    # Of several majors, report the one that reached the last phase.
    furthest = max(pinned, key=lambda rejection: rejection.phase)
    row = errors.PINNED_PROVIDER_UNAVAILABLE
    if furthest.code in (errors.POLICY_VIOLATION.name, errors.REGION_MISMATCH.name):
        row = errors.failure_by_name(furthest.code)
    return row, _with_period(f"{id} is pinned to {pin}, which cannot serve it: {furthest.reason}")


def _until(candidates: Iterable[Candidate], now: float) -> float | None:
    end_times = [_unhealthy_until(candidate, now) for candidate in candidates]
    return min((end for end in end_times if end is not None), default=None)


def _retry_after(
    suitable: Iterable[Candidate],
    machine: Machine,
    workspace: SelectionPolicy,
    pin: str | None,
    now: float,
) -> int | None:
    """Return when a driver that is only unhealthy may serve the call, in ms."""
    delays = []
    for candidate in suitable:
        until = _unhealthy_until(candidate, now)
        if until is None or (pin is not None and not is_pinned(candidate.driver, pin)):
            continue
        if (
            _check_ability(candidate, machine, until) is None
            and _check_policy(candidate.driver, workspace) is None
        ):
            delays.append(until - now)
    return math.ceil(min(delays) * 1000) if delays else None


# -- Cache of decisions.
#
# A decision depends on the contract, the selection policy, the pin, the inputs that some driver
# does not support, and the condition of the drivers. The condition is not part of the cache key: a
# change of a driver must call `invalidate`. Expiry by time is handled here.

MAX_CACHED_DECISIONS: Final = 4096

_Key = tuple[str, str, str | None, str | None, frozenset[str]]


class ResolverCache:
    """A cache of resolver decisions."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cached: BoundedDict[_Key, DriverChoice] = BoundedDict(MAX_CACHED_DECISIONS)
        self._workspace: SelectionPolicy | None = None
        self._fingerprint = ""

    def decide(
        self,
        contract: ToolContract,
        candidates: Sequence[Candidate],
        inputs: Collection[str],
        *,
        workspace: SelectionPolicy,
        pinned: str | None = None,
        now: float,
    ) -> DriverChoice:
        """Return the decision of `route`, from the cache if possible."""
        if workspace is not self._workspace:
            self._workspace = workspace
            self._fingerprint = fingerprint(workspace)
        relevant_inputs = frozenset(
            name
            for candidate in candidates
            for name in candidate.entry.drop_inputs
            if name in inputs
        )
        key = (contract.key, self._fingerprint, pinned, workspace.region, relevant_inputs)
        cached = self._cached.get(key)
        if cached is not None and (cached.until is None or now < cached.until):
            return cached
        decision = route(
            contract,
            candidates,
            inputs,
            workspace=workspace,
            machine=self._machine,
            pinned=pinned,
            now=now,
        )
        # A decision with a retry delay is valid only now.
        if decision.retry_after_ms is None:
            self._cached[key] = decision
        return decision

    def invalidate(self, contract: str | None = None) -> None:
        """Remove cached decisions after a driver was added, removed or changed.

        Args:
            contract: only the decisions about this contract (id@major).
        """
        if contract is None:
            self._cached.clear()
            return
        for key in [cache_key for cache_key in self._cached if cache_key[0] == contract]:
            del self._cached[key]

    def __len__(self) -> int:
        return len(self._cached)


def fingerprint(workspace: SelectionPolicy) -> str:
    """Return a digest of a selection policy."""
    plain = msgspec.json.encode(workspace, order="deterministic")
    return blake2b(plain, digest_size=16).hexdigest()


# -- Explanation of a decision: lines for a person, and a row for the journal.

RESOLVED: Final = "driver.resolved"
PHASES: Final = {
    1: "implements it",
    2: "able to serve it",
    3: "allowed to serve it",
    4: "pinned",
}


def explain(decision: DriverChoice) -> list[str]:
    """Explain a decision phase by phase, then list the order of the remaining drivers."""
    lines = [_title(decision)]
    remaining = decision.total
    step = 0
    for phase, label in PHASES.items():
        if phase == 4 and decision.pinned is None:
            continue
        step += 1
        rejections = [rejection for rejection in decision.rejected if rejection.phase == phase]
        remaining -= len(rejections)
        title = f"{label} ({decision.pinned})" if phase == 4 else label
        lines.append(f"  {step}. {title}: {remaining} of {remaining + len(rejections)}")
        lines += [f"       not {rejection.driver}: {rejection.reason}" for rejection in rejections]
    if decision.order:
        lines.append(f"  {step + 1}. in this order:")
        lines += [
            f"       {place}. {_format_candidate(candidate)}"
            for place, candidate in enumerate(decision.order, 1)
        ]
    if decision.failure is not None:
        lines.append(f"  {decision.failure.name}: {_conclusion(decision)}")
    else:
        lines.append(f"  {decision.message}")
    return lines


def _conclusion(decision: DriverChoice) -> str:
    """Return why no driver remains, without repeating the reasons against single drivers."""
    reasons = [rejection.reason.removesuffix(".") for rejection in decision.rejected]
    if decision.pinned is None and any(reason in decision.message for reason in reasons):
        return f"no driver can serve {decision.contract} now."
    return decision.message


def resolved_row(
    decision: DriverChoice,
    *,
    user_id: str,
    workspace_id: str,
    at: float,
) -> dict[str, Any]:
    """Return the audit row of a decision (AIP-30).

    Args:
        at: wall clock.
    """
    selected = decision.selected
    return {
        "type": RESOLVED,
        "tool_id": decision.contract,
        "tool_version": decision.version,
        "user_id": user_id,
        "workspace_id": workspace_id,
        "candidates_total": decision.total,
        "candidates_passed_phase_2_capability": decision.passed_capability,
        "candidates_passed_phase_3_policy": decision.passed_policy,
        "pinned_provider": decision.pinned,
        "rejected": [
            {"provider_id": rejection.driver, "phase": rejection.phase, "reason": rejection.reason}
            for rejection in decision.rejected
        ],
        "selected": None
        if selected is None
        else {
            "provider_id": selected.driver.key,
            "kind": selected.driver.kind,
            "cost_units_per_call": _driver_cost(selected).units_per_call,
        },
        "ts": format_utc_ms(at),
    }


def _title(decision: DriverChoice) -> str:
    version = f" {decision.version}" if decision.version else ""
    drivers = "1 driver declares" if decision.total == 1 else f"{decision.total} drivers declare"
    return f"{decision.contract}{version}: {drivers if decision.total else 'no driver declares'} it"


def _driver_cost(candidate: Candidate) -> Cost:
    """Return the cost that the driver itself declares."""
    specific, general = candidate.entry.cost or Cost(), candidate.driver.cost or Cost()
    priced = specific if specific.units_per_call is not None else general
    return Cost(specific.cost_class or general.cost_class, priced.units_per_call, priced.currency)


def _format_candidate(candidate: Candidate) -> str:
    driver, cost = candidate.driver, _driver_cost(candidate)
    details: list[str] = [driver.kind]
    if cost.units_per_call is not None:
        details.append(f"{cost.units_per_call:g} {cost.currency or 'millicents'} a call")
    elif cost.cost_class is not None:
        details.append(cost.cost_class)
    return f"{driver.key} ({', '.join(details)})"
