"""The upstream of contracts: a call of one goes to a driver that serves it.

Which driver, is decided by the resolver for every call; how input and result are translated, by
the contract's binding. When a driver fails, the next one is tried where that can do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core.call import Call, ClientSession
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, META_CONTEXT, META_DRIVER, Tool
from interlock.core.deferred_request import DeferredRequest
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.drivers.contract_exchange import (
    ContractExchange,
    InputRequestState,
    gone,
    read_request_state,
)
from interlock.drivers.contract_shape import ContractShape
from interlock.drivers.contract_tool import effect_level
from interlock.drivers.contract_versions import ContractVersions, MajorDeprecation
from interlock.drivers.driver import Driver, DriverBinding
from interlock.drivers.driver_journal import DriverJournal
from interlock.drivers.errors import not_ready
from interlock.drivers.limits import effective_timeout_ms
from interlock.drivers.resolver import (
    Candidate,
    DriverChoice,
    Machine,
    ResolverCache,
    SelectionPolicy,
)
from interlock.errors import (
    AUTH_REQUIRED,
    CONFIRMATION_EXPIRED,
    INVALID_PARAMS,
    TOOL_UNAVAILABLE,
    UNKNOWN_TOOL,
    InterlockError,
)
from interlock.manifests.model import ToolContract
from interlock.protocol.jsonrpc import decode_value

KEY: Final = CONTRACTS


class ServedContract(Struct):
    """A contract, and who serves it."""

    contract: ToolContract
    shape: ContractShape
    drivers: list[Driver] = []
    deprecation: MajorDeprecation | None = None
    """Its time is running out."""
    candidates: list[Candidate] = []
    known: tuple[object, ...] | None = None
    """By what of its drivers the candidates were made."""

    @property
    def level(self) -> EffectLevel:
        """What a call does: by the contract, or worse, by the words of a tool that serves it."""
        key = self.contract.key
        said = [driver.bindings[key].level for driver in self.drivers if driver.serves(key)]
        return max([effect_level(self.contract), *said])

    @property
    def served_by(self) -> tuple[str, ...]:
        """The drivers that a call may go to, as they are: `id@version digest`."""
        found = [driver for driver in self.drivers if driver.serves(self.contract.key)]
        return tuple(
            f"{driver.manifest.id}@{driver.manifest.version} {driver.digest}" for driver in found
        )


class ContractUpstream:
    """Takes the calls of all contracts."""

    key = KEY
    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        *,
        clock: Clock,
        wall_clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        journal: DriverJournal,
        machine: Machine,
        circuit_open: Callable[[str], bool],
    ) -> None:
        self.served: dict[str, ServedContract] = {}
        """By the key of the contract."""
        self.versions = ContractVersions(())
        """Which contract a name means."""
        self.workspace = SelectionPolicy()
        self.clock = clock
        self.call_later = call_later
        self.journal = journal
        self._wall_clock = wall_clock
        self._decisions = ResolverCache(machine)
        self._circuit_open = circuit_open

    # -- what the pipeline asks

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        served = self._served(call)
        inputs = (
            call.decoded_arguments
            if call.decoded_arguments is not None
            else decode_value(call.arguments)
        )
        context = _context(call, served)
        request_state = None if call.extra_params is None else read_request_state(call)
        decision = self.decide(served, inputs.keys(), pinned=_pinned(call, served, request_state))
        if decision.selected is None:
            unsigned = _drivers_without_sign_in(served, decision)
            if unsigned:
                # Somebody may have signed in meanwhile, or may be at it.
                return DeferredRequest(
                    call, back, not_ready(), partial(self._start_after_sign_in, unsigned)
                )
        return self._send(call, back, served, inputs, context, decision, request_state)

    async def _start_after_sign_in(
        self, unsigned: list[Driver], call: Call, back: ResponseHandler
    ) -> UpstreamRequest:
        required: InterlockError | None = None
        for driver in unsigned:
            try:
                await driver.ensure_signed_in()
            except InterlockError as error:
                required = required or error
        served = self._served(call)
        inputs = (
            call.decoded_arguments
            if call.decoded_arguments is not None
            else decode_value(call.arguments)
        )
        request_state = read_request_state(call)
        decision = self.decide(served, inputs.keys(), pinned=_pinned(call, served, request_state))
        if required is not None and decision.failure is AUTH_REQUIRED:
            self.journal.resolved(call, served.contract, decision)
            told = decision.error()
            # How to sign in is for the driver to say.
            raise InterlockError(
                required.failure, required.message, {**(told.data or {}), **(required.data or {})}
            )
        return self._send(
            call, back, served, inputs, _context(call, served), decision, request_state
        )

    def _send(
        self,
        call: Call,
        back: ResponseHandler,
        served: ServedContract,
        inputs: Mapping[str, Any],
        context: Any,
        decision: DriverChoice,
        request_state: InputRequestState | None,
    ) -> UpstreamRequest:
        self.journal.resolved(call, served.contract, decision)
        if decision.selected is None:
            raise decision.error()
        exchange = ContractExchange(
            self, call, back, served, inputs, context, decision.order, request_state
        )
        exchange.begin()
        return exchange

    def decide(
        self, served: ServedContract, inputs: Any, *, pinned: str | None = None
    ) -> DriverChoice:
        """Which driver a call with these inputs goes to, and why not to others."""
        key = served.contract.key
        known = tuple([self._known(driver, driver.bindings[key]) for driver in served.drivers])
        if known != served.known:
            served.known = known
            served.candidates = [_candidate(driver, key) for driver in served.drivers]
            self._decisions.invalidate(key)
        return self._decisions.decide(
            served.contract,
            served.candidates,
            inputs,
            workspace=self.workspace,
            pinned=pinned,
            now=self._wall_clock(),
        )

    def _known(self, driver: Driver, binding: DriverBinding) -> tuple[object, ...]:
        """Everything that a decision depends on and that changes by itself."""
        condition = driver.condition
        condition.circuit_open = self._circuit_open(driver.key)
        if not condition.authed:
            driver.check_sign_in_soon()
        driver.allow_install_retry()
        failed, passed = condition.health_failed_at, condition.health_passed_at
        return (
            condition.authed,
            condition.auth_problem,
            condition.install_failed,
            condition.version_problem,
            condition.circuit_open,
            failed,
            failed is None or (passed is not None and passed >= failed),
            binding.problems,
        )

    def driver_of(self, served: ServedContract, candidate: Candidate) -> Driver:
        return next(driver for driver in served.drivers if driver.manifest is candidate.driver)

    def limit(self, served: ServedContract, candidate: Candidate) -> float:
        """How long a call may take there, in seconds."""
        return effective_timeout_ms(served.contract, candidate.driver, candidate.entry) / 1000

    def _served(self, call: Call) -> ServedContract:
        name = "" if call.route is None else call.route.upstream_name
        contract = self.versions.find(name)
        served = None if contract is None else self.served.get(contract.key)
        if served is None:
            raise InterlockError(UNKNOWN_TOOL, f"No contract is called {name[:100]!r} here.")
        _require_unchanged(call, served)
        return served

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        for served in self.served.values():
            for driver in served.drivers:
                driver.set_log_level(level, session)

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Contracts have no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """Contracts have no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True


def _require_unchanged(call: Call, served: ServedContract) -> None:
    """A call is judged, written down and, where its server asks something, made again: meanwhile
    files may have changed. Raises InterlockError."""
    route = call.route
    if not isinstance(route, Tool) or route.upstream != KEY:
        return
    id = served.contract.id
    if call.approval_id and not set(served.served_by) <= set(route.served_by):
        raise InterlockError(
            CONFIRMATION_EXPIRED,
            f"{id} was not called: who serves it changed since it was approved. Make the call "
            "again for a new approval.",
            {"confirmation_id": call.approval_id, "contract": id},
        )
    if route.file_digest != served.contract.digest:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"The contract {id} changed while this call was on its way. Call again: it is judged "
            "by what the contract says now.",
            {"contract": id},
        )


def _candidate(driver: Driver, contract: str) -> Candidate:
    binding, condition = driver.bindings[contract], driver.condition
    if not binding.is_usable and not condition.rejection:
        condition = replace(
            condition, rejection=" ".join((*binding.file_problems, *binding.problems))
        )
    return Candidate(driver.manifest, binding.entry, condition)


def _drivers_without_sign_in(served: ServedContract, decision: DriverChoice) -> list[Driver]:
    """The drivers that are not taken because nobody is signed in with them."""
    keys = {
        rejection.driver for rejection in decision.rejected if rejection.code == AUTH_REQUIRED.name
    }
    return [driver for driver in served.drivers if driver.manifest.key in keys]


def _pinned(
    call: Call, served: ServedContract, request_state: InputRequestState | None
) -> str | None:
    """The driver that a call asks for, or whose question it answers. Raises InterlockError."""
    if request_state is not None:
        if not any(request_state.matches(driver) for driver in served.drivers):
            raise gone()
        return request_state.driver
    value = _meta(call, META_DRIVER)
    if value is not None and (not isinstance(value, str) or not value):
        raise InterlockError(
            INVALID_PARAMS, f"`_meta` {META_DRIVER} is not the id of a driver: write it as a text."
        )
    return value


def _context(call: Call, served: ServedContract) -> Any:
    """What the call brings beside its input. Raises InterlockError."""
    if served.contract.context_schema is None:
        # What nobody has described nobody checks: hooks do not get to see it.
        return {}
    context = _meta(call, META_CONTEXT)
    context = {} if context is None else context
    served.shape.check_context(context)
    return context


def _meta(call: Call, name: str) -> Any:
    raw: Raw | None = None if call.meta is None else call.meta.get(name)
    return None if raw is None else decode_value(raw)
