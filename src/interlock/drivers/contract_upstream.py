"""The upstream that serves contract calls through drivers.

The resolver selects a driver for every call. The binding of the contract translates input and
result. If a driver fails, the next driver is tried where that is safe.
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
    read_request_state,
    stale_request_state_error,
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
    """A contract with the drivers that serve it."""

    contract: ToolContract
    shape: ContractShape
    drivers: list[Driver] = []
    deprecation: MajorDeprecation | None = None
    """Set if the major version of the contract is deprecated."""
    candidates: list[Candidate] = []
    driver_state: tuple[object, ...] | None = None
    """The driver states from which the candidates were built."""

    @property
    def level(self) -> EffectLevel:
        """Return the effect level of a call: that of the contract, or a higher level of a serving
        tool."""
        key = self.contract.key
        levels = [driver.bindings[key].level for driver in self.drivers if driver.serves(key)]
        return max([effect_level(self.contract), *levels])

    @property
    def served_by(self) -> tuple[str, ...]:
        """Return the drivers that may serve a call, as `id@version digest`."""
        drivers = [driver for driver in self.drivers if driver.serves(self.contract.key)]
        return tuple(
            f"{driver.manifest.id}@{driver.manifest.version} {driver.digest}" for driver in drivers
        )


class ContractUpstream:
    """The upstream of all contracts."""

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
        self.served_contract: dict[str, ServedContract] = {}
        """Served contracts, by contract key."""
        self.versions = ContractVersions(())
        """The contract names and the contracts that they stand for."""
        self.workspace = SelectionPolicy()
        self.clock = clock
        self.call_later = call_later
        self.journal = journal
        self._wall_clock = wall_clock
        self._decisions = ResolverCache(machine)
        self._circuit_open = circuit_open

    # -- interface of the pipeline

    def start(self, call: Call, handler: ResponseHandler) -> UpstreamRequest:
        served_contract = self._find_served(call)
        inputs = (
            call.decoded_arguments
            if call.decoded_arguments is not None
            else decode_value(call.arguments)
        )
        context = _context(call, served_contract)
        request_state = None if call.extra_params is None else read_request_state(call)
        decision = self.decide(
            served_contract, inputs.keys(), pinned=_find_pin(call, served_contract, request_state)
        )
        if decision.selected is None:
            drivers = _drivers_without_sign_in(served_contract, decision)
            if drivers:
                # An operator may have signed in meanwhile, or a sign-in may be in progress.
                return DeferredRequest(
                    call, handler, not_ready(), partial(self._start_after_sign_in, drivers)
                )
        return self._send(call, handler, served_contract, inputs, context, decision, request_state)

    async def _start_after_sign_in(
        self, drivers: list[Driver], call: Call, handler: ResponseHandler
    ) -> UpstreamRequest:
        required: InterlockError | None = None
        for driver in drivers:
            try:
                await driver.ensure_signed_in()
            except InterlockError as error:
                required = required or error
        served_contract = self._find_served(call)
        inputs = (
            call.decoded_arguments
            if call.decoded_arguments is not None
            else decode_value(call.arguments)
        )
        request_state = read_request_state(call)
        decision = self.decide(
            served_contract, inputs.keys(), pinned=_find_pin(call, served_contract, request_state)
        )
        if required is not None and decision.failure is AUTH_REQUIRED:
            self.journal.record_choice(call, served_contract.contract, decision)
            resolver_error = decision.error()
            # The error of the driver explains how to sign in.
            raise InterlockError(
                required.failure,
                required.message,
                {**(resolver_error.data or {}), **(required.data or {})},
            )
        return self._send(
            call,
            handler,
            served_contract,
            inputs,
            _context(call, served_contract),
            decision,
            request_state,
        )

    def _send(
        self,
        call: Call,
        handler: ResponseHandler,
        served_contract: ServedContract,
        inputs: Mapping[str, Any],
        context: Any,
        decision: DriverChoice,
        request_state: InputRequestState | None,
    ) -> UpstreamRequest:
        self.journal.record_choice(call, served_contract.contract, decision)
        if decision.selected is None:
            raise decision.error()
        exchange = ContractExchange(
            self, call, handler, served_contract, inputs, context, decision.order, request_state
        )
        exchange.start()
        return exchange

    def decide(
        self, served_contract: ServedContract, inputs: Any, *, pinned: str | None = None
    ) -> DriverChoice:
        """Select the driver for a call with these inputs. The choice includes the reasons against
        other drivers."""
        key = served_contract.contract.key
        driver_state = tuple(
            [
                self._decision_state(driver, driver.bindings[key])
                for driver in served_contract.drivers
            ]
        )
        if driver_state != served_contract.driver_state:
            served_contract.driver_state = driver_state
            served_contract.candidates = [
                _candidate(driver, key) for driver in served_contract.drivers
            ]
            self._decisions.invalidate(key)
        return self._decisions.decide(
            served_contract.contract,
            served_contract.candidates,
            inputs,
            workspace=self.workspace,
            pinned=pinned,
            now=self._wall_clock(),
        )

    def _decision_state(self, driver: Driver, binding: DriverBinding) -> tuple[object, ...]:
        """Return the driver state that a decision depends on and that can change at any time."""
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

    def driver_of(self, served_contract: ServedContract, candidate: Candidate) -> Driver:
        return next(
            driver for driver in served_contract.drivers if driver.manifest is candidate.driver
        )

    def call_timeout(self, served_contract: ServedContract, candidate: Candidate) -> float:
        """Return the timeout of a call at a driver, in seconds."""
        return (
            effective_timeout_ms(served_contract.contract, candidate.driver, candidate.entry) / 1000
        )

    def _find_served(self, call: Call) -> ServedContract:
        name = "" if call.route is None else call.route.upstream_name
        contract = self.versions.find(name)
        served_contract = None if contract is None else self.served_contract.get(contract.key)
        if served_contract is None:
            raise InterlockError(
                UNKNOWN_TOOL, f"There is no contract {name[:100]!r}. List the tools again."
            )
        _require_unchanged(call, served_contract)
        return served_contract

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        for served_contract in self.served_contract.values():
            for driver in served_contract.drivers:
                driver.set_log_level(level, session)

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Contracts have no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """Contracts have no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True


def _require_unchanged(call: Call, served_contract: ServedContract) -> None:
    """Check that the contract and its drivers are the ones that were authorized. Between
    authorization, journal and a repetition after an input request, files may have changed. Raises
    InterlockError."""
    route = call.route
    if not isinstance(route, Tool) or route.upstream != KEY:
        return
    id = served_contract.contract.id
    if call.approval_id and not set(served_contract.served_by) <= set(route.served_by):
        raise InterlockError(
            CONFIRMATION_EXPIRED,
            f"{id} was not called: a driver that serves it changed since the approval. Call it "
            "again to request a new approval.",
            {"confirmation_id": call.approval_id, "contract": id},
        )
    if route.file_digest != served_contract.contract.digest:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"The contract {id} changed while this call was processed. Repeat the call; it is "
            "authorized by the current contract.",
            {"contract": id},
        )


def _candidate(driver: Driver, contract: str) -> Candidate:
    binding, condition = driver.bindings[contract], driver.condition
    if not binding.is_usable and not condition.rejection:
        condition = replace(
            condition, rejection=" ".join((*binding.file_problems, *binding.problems))
        )
    return Candidate(driver.manifest, binding.entry, condition)


def _drivers_without_sign_in(
    served_contract: ServedContract, decision: DriverChoice
) -> list[Driver]:
    """Return the drivers that were rejected because no operator is signed in with them."""
    keys = {
        rejection.driver for rejection in decision.rejected if rejection.code == AUTH_REQUIRED.name
    }
    return [driver for driver in served_contract.drivers if driver.manifest.key in keys]


def _find_pin(
    call: Call, served_contract: ServedContract, request_state: InputRequestState | None
) -> str | None:
    """Return the driver that a call is pinned to: by its `_meta`, or by the input request that it
    responds to. Raises InterlockError."""
    if request_state is not None:
        if not any(request_state.matches(driver) for driver in served_contract.drivers):
            raise stale_request_state_error()
        return request_state.driver
    value = _meta(call, META_DRIVER)
    if value is not None and (not isinstance(value, str) or not value):
        raise InterlockError(
            INVALID_PARAMS, f"`_meta.{META_DRIVER}` must be the id of a driver, as a string."
        )
    return value


def _context(call: Call, served_contract: ServedContract) -> Any:
    """Return the context of a call. Raises InterlockError."""
    if served_contract.contract.context_schema is None:
        # Without a schema the context cannot be checked, so hooks do not get it.
        return {}
    context = _meta(call, META_CONTEXT)
    context = {} if context is None else context
    served_contract.shape.check_context(context)
    return context


def _meta(call: Call, name: str) -> Any:
    raw: Raw | None = None if call.meta is None else call.meta.get(name)
    return None if raw is None else decode_value(raw)
