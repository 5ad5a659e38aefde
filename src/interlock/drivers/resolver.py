"""Which driver serves a call: the six phases of AIP-30, the same for the same question every time.

1. who implements the contract, at its version, within its constraints and with these inputs
2. who is able to: installed, right version, right machine, signed in, healthy
3. who is allowed to: policy tags, then region
4. who is pinned, if anybody is
5. in which order the rest would be taken
6. the first of them is bound to the call (`bind`)

Everything that is known comes in as arguments, the time too. A decision keeps why each of the
others was not taken, so that `drivers explain` can print it and the journal can record it.
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

# -- What the resolver is told: drivers and what is known of them, the machine, and the workspace.


class DriverCondition(Struct):
    """What is known about one driver right now."""

    refused: str = ""
    """Why it may not be used at all: its binding or its registration failed."""
    install_failed: str = ""
    version_problem: str = ""
    authed: bool = True
    auth_problem: str = ""
    """Why nobody is signed in with it, and what to do, in whole sentences."""
    login_only: bool = False
    """It can be used without being signed in, and signs in when it is."""
    health_failed_at: float | None = None
    health_passed_at: float | None = None
    circuit_open: bool = False


class Candidate(Struct, frozen=True):
    """A driver that says it serves the contract."""

    driver: DriverManifest
    entry: ImplementedContract
    condition: DriverCondition


class Machine(Struct, frozen=True):
    """What `requires` is held against, in its own words (linux, x64)."""

    os: str
    arch: str
    disk_mb: int
    memory_mb: int


class SelectionPolicy(Struct, frozen=True):
    """Which drivers may be used here."""

    region: str | None = None
    strict_region: bool = False
    """Whether a global driver is not good enough."""
    forbid: tuple[str, ...] = ()
    """A driver with any of these tags is out."""
    require: tuple[str, ...] = ()
    """A driver without any one of these tags is out."""
    allow: tuple[str, ...] = ()
    """If there are any: a driver with another tag is out."""
    pins: dict[str, str] = field(default_factory=dict)
    """Contract (id or id@major) → driver (id or id@major)."""
    trusted_tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tag → the drivers that are believed to have it. A tag that is not here is believed of all."""


class Rejection(Struct, frozen=True):
    """Why a driver was not taken."""

    driver: str
    """id@major"""
    phase: int
    reason: str
    code: str
    """The error that it would be if nobody else could serve the call."""


def trusted_policy_tags(driver: DriverManifest, workspace: SelectionPolicy) -> tuple[str, ...]:
    """The tags of a driver that count in its favour."""
    return tuple(tag for tag in driver.policy_tags if _is_trusted(tag, driver, workspace))


def tag_warnings(driver: DriverManifest, workspace: SelectionPolicy) -> list[str]:
    """Tags that a driver gives itself and that this workspace does not believe."""
    return [
        f"driver {driver.id}: it says that it is {tag!r}, and is not among those that are believed "
        "to be (trusted_tags): the tag does not count."
        for tag in driver.policy_tags
        if not _is_trusted(tag, driver, workspace)
    ]


def _is_trusted(tag: str, driver: DriverManifest, workspace: SelectionPolicy) -> bool:
    trusted = workspace.trusted_tags.get(tag)
    return trusted is None or driver.id in trusted or driver.key in trusted


# -- In which order drivers are taken that could all serve a call: phase 5.
#
# The contract's default, then the cheaper, then the nearer kind, then who was last seen healthy,
# then the name. Prices are compared within one currency. A driver that has no such price comes
# behind all that have one, by its cost class.

KINDS: Final = ("builtin", "sdk", "http", "mcp", "cli")
"""From the nearest to the farthest."""
COST_CLASSES: Final = ("trivial", "metered", "expensive")
CURRENCY: Final = "USD"
"""What a price without a currency is in: units are millicents."""

_KIND: Final = {kind: place for place, kind in enumerate(KINDS)}
_CLASS: Final = {word: place for place, word in enumerate(COST_CLASSES)}


def ranked(contract: ToolContract, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, the best first."""
    found = list(candidates)
    costs = [effective_cost(contract, candidate.driver, candidate.entry) for candidate in found]
    currency = _common_currency(costs)
    keys = [
        _key(contract, candidate, cost, currency)
        for candidate, cost in zip(found, costs, strict=True)
    ]
    order = sorted(range(len(found)), key=lambda place: keys[place])
    return [found[place] for place in order]


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
        # Two majors of one driver: the newer one.
        -driver.major,
        driver.version,
        candidate.entry.line,
    )


def _comparable(cost: Cost, currency: str) -> float | None:
    """A price that can be compared with the others. What is free is free in every currency."""
    units = cost.units_per_call
    if units is None or (units and _currency(cost) != currency):
        return None
    return units


def _common_currency(costs: list[Cost]) -> str:
    """The one that most prices are in."""
    used = Counter(_currency(cost) for cost in costs if cost.units_per_call)
    return min(used, key=lambda currency: (-used[currency], currency), default=CURRENCY)


def _currency(cost: Cost) -> str:
    return cost.currency.upper() or CURRENCY


DEFAULT_HEALTH_SECONDS: Final = 300.0
"""So long a failure counts against a driver that has no `health_check.every` of its own."""
NOT_PINNED: Final = "not_pinned"
_CLOSEST: Final = 5
# When every driver fails for the same reason, that is the answer, and not only that none is left.
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
    """What the resolver found: a driver, or why there is none."""

    contract: str
    """Its id."""
    selected: Candidate | None
    order: tuple[Candidate, ...]
    """All that could serve the call, the best first."""
    rejected: tuple[Rejection, ...]
    """All others, by phase and id."""
    total: int
    passed_capability: int
    passed_policy: int
    pinned: str | None
    failure: Failure | None
    message: str
    version: str = ""
    """The contract's."""
    fields: tuple[str, ...] = ()
    """Inputs without which a driver could serve the call."""
    retry_after_ms: int | None = None
    """When there is no driver, and one that is unhealthy now will be tried again."""
    until: float | None = None
    """When time alone may change the decision."""

    def error(self) -> InterlockError:
        """What the caller is told when there is no driver."""
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
    """A call that has its driver: phase 6."""

    driver: DriverManifest
    input: dict[str, Any]
    """In the driver's names."""
    context: dict[str, Any] = field(default_factory=dict)


def bind(
    candidate: Candidate,
    entry: BoundEntry,
    inputs: Mapping[str, Any],
    context: Mapping[str, Any] | None = None,
) -> BoundCall:
    """Bind a call to the driver that was chosen. Raises InterlockError."""
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
    """Choose a driver for a call with these inputs, of which only the names matter."""
    rejected: list[Rejection] = []
    fitting = _keep(
        candidates, 1, rejected, lambda candidate: _check_contract(contract, candidate, inputs)
    )
    able = _keep(fitting, 2, rejected, lambda candidate: _check_ability(candidate, machine, now))
    allowed = _keep(able, 3, rejected, lambda candidate: _check_policy(candidate.driver, workspace))
    fixed = workspace.pins.get(contract.key) or workspace.pins.get(contract.id)
    pin = _narrower_pin(fixed, pinned) if fixed and pinned else fixed or pinned
    contradicted = pin is None and pinned is not None
    pin = pin or fixed
    left = allowed
    if pin is not None:
        # What was pinned must serve the call: nobody else takes its place, not even in need.
        left = _keep(
            allowed, 4, rejected, lambda candidate: _check_pin(candidate.driver, pin, contradicted)
        )
    order = tuple(ranked(contract, left))
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
    against = pinned if contradicted else None
    failure, message = _failure(contract, decision, against, workspace, fields)
    return replace(
        decision,
        failure=failure,
        message=message,
        fields=fields,
        retry_after_ms=_retry_after(fitting, machine, workspace, pin, now),
    )


_Refusal = tuple[str, str]
"""Why not, and the code of the error that it is."""


def _keep(
    candidates: Iterable[Candidate],
    phase: int,
    rejected: list[Rejection],
    refuse: Callable[[Candidate], _Refusal | None],
) -> list[Candidate]:
    kept = []
    for candidate in candidates:
        refusal = refuse(candidate)
        if refusal is None:
            kept.append(candidate)
        else:
            rejected.append(Rejection(candidate.driver.key, phase, *refusal))
    return kept


# -- the phases


def _check_contract(
    contract: ToolContract, candidate: Candidate, inputs: Collection[str]
) -> _Refusal | None:
    driver, constraints = candidate.driver, contract.driver_constraints
    unavailable = errors.TOOL_UNAVAILABLE.name
    if candidate.condition.refused:
        return candidate.condition.refused, unavailable
    outdated = version_problem(contract, candidate.entry)
    if outdated:
        return outdated, unavailable
    for word in (driver.id, driver.key, driver.kind):
        if word in constraints.forbid:
            return f"the contract forbids {word}", errors.NO_ROUTE.name
    if constraints.require_kind and driver.kind not in constraints.require_kind:
        kinds = " or ".join(constraints.require_kind)
        return f"the contract wants a driver of kind {kinds}", errors.NO_ROUTE.name
    dropped = _dropped(candidate, inputs)
    if dropped:
        return f"it does not take {', '.join(dropped)}", errors.INPUT_UNSUPPORTED.name
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
        return "its calls failed too often in a row, and it rests", errors.TOOL_UNAVAILABLE.name
    return None


def _lacking(requires: MachineRequirements, machine: Machine) -> str:
    if requires.os and machine.os not in requires.os:
        return f"it runs on {' or '.join(requires.os)}, and this is {machine.os}"
    if requires.arch and machine.arch not in requires.arch:
        return f"it runs on {' or '.join(requires.arch)}, and this is {machine.arch}"
    if machine.disk_mb < requires.min_disk_mb:
        return f"it needs {requires.min_disk_mb} MB of disk, and {machine.disk_mb} are free"
    if machine.memory_mb < requires.min_memory_mb:
        return f"it needs {requires.min_memory_mb} MB of memory, and there are {machine.memory_mb}"
    return ""


def _unhealthy_until(candidate: Candidate, now: float) -> float | None:
    """Until when a failed check counts. None: there is none that does."""
    failed, passed = candidate.condition.health_failed_at, candidate.condition.health_passed_at
    if failed is None or (passed is not None and passed >= failed):
        return None
    check = candidate.driver.health_check
    until = failed + (DEFAULT_HEALTH_SECONDS if check is None else check.every)
    return until if now < until else None


def _check_policy(driver: DriverManifest, workspace: SelectionPolicy) -> _Refusal | None:
    violation = errors.POLICY_VIOLATION.name
    # Against a driver everything counts that it says of itself; for it only what is believed.
    hits = [tag for tag in driver.policy_tags if tag in workspace.forbid]
    if hits:
        return f"the policy forbids drivers that are {hits[0]}", violation
    believed = trusted_policy_tags(driver, workspace)
    missing = [tag for tag in workspace.require if tag not in believed]
    if missing:
        return f"the policy wants drivers that are {missing[0]}", violation
    others = [tag for tag in driver.policy_tags if tag not in workspace.allow]
    if workspace.allow and others:
        return f"the policy does not allow drivers that are {others[0]}", violation
    region = workspace.region
    if region is None or region in driver.region:
        return None
    if UNIVERSAL_REGION in driver.region and not workspace.strict_region:
        return None
    return (
        f"its region is {', '.join(driver.region)}, and not {region}",
        errors.REGION_MISMATCH.name,
    )


def _check_pin(driver: DriverManifest, pin: str, contradicted: bool) -> _Refusal | None:
    if contradicted:
        return f"the workspace pins the contract to {pin}, and the call to another", NOT_PINNED
    return None if is_pinned(driver, pin) else (f"the contract is pinned to {pin}", NOT_PINNED)


def _narrower_pin(pin: str, other: str) -> str | None:
    """The pin that says more, of two that both hold. None: they contradict each other."""
    if other in (pin, pin.partition("@")[0]):
        return pin
    return other if other.partition("@")[0] == pin else None


def is_pinned(driver: DriverManifest, pin: str) -> bool:
    """Whether a pin means this driver: its id, or one major of it."""
    return pin in (driver.id, driver.key)


# -- when nobody is left


def _failure(
    contract: ToolContract,
    decision: DriverChoice,
    against: str | None,
    workspace: SelectionPolicy,
    fields: tuple[str, ...],
) -> tuple[Failure, str]:
    """`against`: the pin of a call that contradicts the workspace."""
    id, rejected = contract.id, decision.rejected
    if against is not None:
        return (
            errors.POLICY_VIOLATION,
            f"{id} always goes to {decision.pinned} here: the call cannot be pinned to {against}.",
        )
    row = _shared_reason(rejected)
    if row is errors.INPUT_UNSUPPORTED:
        named = ", ".join(fields)
        return row, f"No driver of {id} takes {named}: call it without."
    if decision.pinned is not None:
        return _pin_failed(id, decision.pinned, rejected)
    if not rejected:
        return errors.NO_ROUTE, f"There is no driver for {id}: add one that implements it."
    why = _ended(
        "; ".join(_describe_rejection(rejection) for rejection in reversed(rejected[-_CLOSEST:]))
    )
    if any(rejection.code == errors.REGION_MISMATCH.name for rejection in rejected):
        return (
            errors.NO_ROUTE_IN_REGION,
            f"No driver of {id} is in the region {workspace.region}. {why}",
        )
    if row is errors.AUTH_REQUIRED:
        first = rejected[-1].driver.partition("@")[0]
        if _names(first, rejected[-1].reason):
            # The sentence that the driver itself has for it, wherever it is told.
            return row, rejected[-1].reason
        return row, f"{id} needs a driver that is signed in: sign in to {first} first."
    return row or errors.NO_ROUTE, f"No driver can serve {id} now. {why}"


def _describe_rejection(rejection: Rejection) -> str:
    """Why not this driver. Some reasons are sentences that begin with whom they are about."""
    reason, id = rejection.reason.removesuffix("."), rejection.driver.partition("@")[0]
    return reason if _names(id, reason) else f"{rejection.driver}: {reason}"


def _names(id: str, reason: str) -> bool:
    """Whether it says whom it is about; not where the id is only a part of another word."""
    return re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", reason) is not None


def _ended(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _shared_reason(rejected: Sequence[Rejection]) -> Failure | None:
    """The one code that all have who were not ruled out by the contract itself."""
    codes = {rejection.code for rejection in rejected if rejection.code != errors.NO_ROUTE.name}
    return _SPECIFIC.get(codes.pop()) if len(codes) == 1 else None


def _pin_failed(id: str, pin: str, rejected: Sequence[Rejection]) -> tuple[Failure, str]:
    meant = [
        rejection
        for rejection in rejected
        if pin in (rejection.driver, rejection.driver.partition("@")[0])
    ]
    if not meant:
        return (
            errors.PINNED_PROVIDER_UNAVAILABLE,
            f"{id} is pinned to {pin}, and there is no such driver for it.",
        )
    # Of several majors, the one that came furthest.
    last = max(meant, key=lambda rejection: rejection.phase)
    row = errors.PINNED_PROVIDER_UNAVAILABLE
    if last.code in (errors.POLICY_VIOLATION.name, errors.REGION_MISMATCH.name):
        row = errors.failure_by_name(last.code)
    return row, _ended(f"{id} is pinned to {pin}, which cannot serve it: {last.reason}")


def _until(candidates: Iterable[Candidate], now: float) -> float | None:
    ends = [_unhealthy_until(candidate, now) for candidate in candidates]
    return min((end for end in ends if end is not None), default=None)


def _retry_after(
    fitting: Iterable[Candidate],
    machine: Machine,
    workspace: SelectionPolicy,
    pin: str | None,
    now: float,
) -> int | None:
    """When a driver may serve the call that only its health keeps from it."""
    waits = []
    for candidate in fitting:
        until = _unhealthy_until(candidate, now)
        if until is None or (pin is not None and not is_pinned(candidate.driver, pin)):
            continue
        if (
            _check_ability(candidate, machine, until) is None
            and _check_policy(candidate.driver, workspace) is None
        ):
            waits.append(until - now)
    return math.ceil(min(waits) * 1000) if waits else None


# -- Decisions of the resolver, kept for as long as nothing changes that they depend on.
#
# A decision depends on the contract, the workspace's policy and region, the pin, those inputs that
# some driver does not take, and what is known of the drivers. The last of these is not in the key:
# whoever changes a driver or its condition calls `invalidate`. What time alone changes is seen
# here.

MAX_CACHED_DECISIONS: Final = 4096

_Key = tuple[str, str, str | None, str | None, frozenset[str]]


class ResolverCache:
    """Asks the resolver once for each question."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kept: BoundedDict[_Key, DriverChoice] = BoundedDict(MAX_CACHED_DECISIONS)
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
        """What `route` says, or said."""
        if workspace is not self._workspace:
            self._workspace = workspace
            self._fingerprint = fingerprint(workspace)
        contested = frozenset(
            name
            for candidate in candidates
            for name in candidate.entry.drop_inputs
            if name in inputs
        )
        key = (contract.key, self._fingerprint, pinned, workspace.region, contested)
        kept = self._kept.get(key)
        if kept is not None and (kept.until is None or now < kept.until):
            return kept
        decision = route(
            contract,
            candidates,
            inputs,
            workspace=workspace,
            machine=self._machine,
            pinned=pinned,
            now=now,
        )
        # With a wait in it, it is true for this moment only.
        if decision.retry_after_ms is None:
            self._kept[key] = decision
        return decision

    def invalidate(self, contract: str | None = None) -> None:
        """A driver came, went or changed its condition: ask again. `contract`: only about this one
        (id@major)."""
        if contract is None:
            self._kept.clear()
            return
        for key in [cache_key for cache_key in self._kept if cache_key[0] == contract]:
            del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)


def fingerprint(workspace: SelectionPolicy) -> str:
    """The same for two workspaces with the same policy."""
    plain = msgspec.json.encode(workspace, order="deterministic")
    return blake2b(plain, digest_size=16).hexdigest()


# -- Why a contract goes to the driver it goes to: for a person, line by line, and for the journal.

RESOLVED: Final = "driver.resolved"
PHASES: Final = {
    1: "implements it",
    2: "able to serve it",
    3: "allowed to serve it",
    4: "pinned",
}


def explain(decision: DriverChoice) -> list[str]:
    """The decision, phase by phase, then the order of those that are left."""
    lines = [_title(decision)]
    left = decision.total
    step = 0
    for phase, word in PHASES.items():
        if phase == 4 and decision.pinned is None:
            continue
        step += 1
        out = [rejection for rejection in decision.rejected if rejection.phase == phase]
        left -= len(out)
        shown = f"{word} ({decision.pinned})" if phase == 4 else word
        lines.append(f"  {step}. {shown}: {left} of {left + len(out)}")
        lines += [f"       not {rejection.driver}: {rejection.reason}" for rejection in out]
    if decision.order:
        lines.append(f"  {step + 1}. in this order:")
        lines += [
            f"       {place}. {_shown(candidate)}"
            for place, candidate in enumerate(decision.order, 1)
        ]
    if decision.failure is not None:
        lines.append(f"  {decision.failure.name}: {_ending(decision)}")
    else:
        lines.append(f"  {decision.message}")
    return lines


def _ending(decision: DriverChoice) -> str:
    """Why nobody is left; what was told of single drivers is not told again."""
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
    """The audit row of AIP-30 that tells how a driver was chosen. `at`: the wall clock."""
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
            "cost_units_per_call": _own_cost(selected).units_per_call,
        },
        "ts": format_utc_ms(at),
    }


def _title(decision: DriverChoice) -> str:
    version = f" {decision.version}" if decision.version else ""
    drivers = "1 driver declares" if decision.total == 1 else f"{decision.total} drivers declare"
    return f"{decision.contract}{version}: {drivers if decision.total else 'no driver declares'} it"


def _own_cost(candidate: Candidate) -> Cost:
    """What the driver itself says that a call costs."""
    own, general = candidate.entry.cost or Cost(), candidate.driver.cost or Cost()
    priced = own if own.units_per_call is not None else general
    return Cost(own.cost_class or general.cost_class, priced.units_per_call, priced.currency)


def _shown(candidate: Candidate) -> str:
    driver, cost = candidate.driver, _own_cost(candidate)
    words: list[str] = [driver.kind]
    if cost.units_per_call is not None:
        words.append(f"{cost.units_per_call:g} {cost.currency or 'millicents'} a call")
    elif cost.cost_class is not None:
        words.append(cost.cost_class)
    return f"{driver.key} ({', '.join(words)})"
