"""Publication of drivers in the catalog: each served contract as a tool, and the declared prompts
and resources."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import (
    ENDED_CONTRACTS,
    read_contract_offering,
    read_offering,
)
from interlock.core.catalog.server_info import UpstreamIntroduction
from interlock.core.config import Config, ServerConfig
from interlock.core.config.quantities import default_segment
from interlock.core.ports import Upstream
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers.config import DriversConfig
from interlock.drivers.contract_tool import approval_floor, definition
from interlock.drivers.contract_upstream import KEY, ContractUpstream
from interlock.drivers.contract_versions import ContractVersions, MajorDeprecation, versioned_name
from interlock.drivers.driver import Driver
from interlock.drivers.offers import declared_prompts, declared_resources
from interlock.manifests.model import ToolContract
from interlock.protocol.jsonrpc import encode_value
from interlock.trust.authorization import MinimumActions
from interlock.trust.policy import PolicyAction
from interlock.trust.policy.decision import make_decision

_log = logging.getLogger("interlock.drivers")

ENDED: Final = ENDED_CONTRACTS
"""The upstream of contract names that have ended. A call of such a name fails with a pointer to the
replacement."""
MAX_WAIT_SECONDS: Final = 86_400.0

ContractRecorder = Callable[[str, str, bytes, str], object]
"""Records the name of a contract, its version, its definition and its source."""
DeprecationLookup = Callable[[Iterable[ToolContract]], Mapping[str, MajorDeprecation]]


class DriverPublisher:
    """A publisher that posts the offerings of drivers to the catalog."""

    def __init__(
        self,
        config: Config,
        *,
        catalog: Catalog,
        floors: MinimumActions,
        upstreams: dict[str, Upstream],
        contracts: ContractUpstream,
        declare: ContractRecorder,
        deprecations: DeprecationLookup,
    ) -> None:
        """Args:
        floors: receives the minimum policy action of contract calls.
        declare: records every offered contract in its history.
        deprecations: returns the deprecated majors of contracts.
        """
        self._config = config
        self.deprecations = deprecations
        self._declare = declare
        self._declared: set[tuple[str, str]] = set()
        self.wall_clock: Callable[[], float] = time.time
        self._catalog = catalog
        self._floors = floors
        self._upstreams = upstreams
        self._contracts = contracts
        self._posted_state: tuple[object, ...] | None = None
        """The state from which the posted offering was built. None: nothing is posted."""
        self._soon_handle: asyncio.Handle | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    def configure(self, config: Config) -> None:
        """Use a new config."""
        self._config = config

    @property
    def is_posted(self) -> bool:
        return self._posted_state is not None

    def publish_soon(self) -> None:
        """Schedule a publication. Several requests lead to one publication."""
        if self._soon_handle is None:
            self._soon_handle = asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Publish every contract that a driver serves, by what is known now."""
        self._cancel_timers()
        served_contracts = self._contracts.served_contract
        usable = [
            entry.contract
            for key, entry in served_contracts.items()
            if any(driver.serves(key) for driver in entry.drivers)
        ]
        levels = {contract.key: served_contracts[contract.key].level for contract in usable}
        serving = {contract.key: served_contracts[contract.key].served_by for contract in usable}
        deprecations = self.deprecations(usable)
        now = self.wall_clock()
        for entry in served_contracts.values():
            entry.deprecation = deprecations.get(entry.contract.key)
        self._schedule_next_end(deprecations, now)
        state = (
            self._config.root_segment,
            tuple(
                (contract.key, contract.digest, levels[contract.key], serving[contract.key])
                for contract in usable
            ),
            tuple((key, end, end.ends_at <= now) for key, end in sorted(deprecations.items())),
        )
        if state == self._posted_state or (not usable and self._posted_state is None):
            return
        self._posted_state = state
        versions = self._contracts.versions = ContractVersions(usable, deprecations, now)
        for clash in versions.clashes:
            _log.warning("contracts: %s", clash)
        self._upstreams[KEY] = self._contracts
        self._post_contracts(versions, deprecations, levels, serving)
        for contract in usable:
            version = (contract.key, contract.digest)
            if version not in self._declared:
                self._declared.add(version)
                declared = definition(contract, name=contract.id)
                self._declare(
                    contract.id, contract.version, declared, f"contract:{contract.file.name}"
                )
        ended_contracts = [
            contract
            for contract in usable
            if contract.key in deprecations and deprecations[contract.key].ends_at <= now
        ]
        names = {
            name
            for contract in ended_contracts
            for name in (contract.id, versioned_name(contract.id, contract.major))
        }
        self._post_ended(sorted(names - versions.names.keys()))

    def _post_contracts(
        self,
        versions: ContractVersions,
        deprecations: Mapping[str, MajorDeprecation],
        levels: Mapping[str, EffectLevel],
        serving: Mapping[str, tuple[str, ...]],
    ) -> None:
        tools = [
            definition(
                contract,
                name=name,
                deprecation=None
                if (end := deprecations.get(contract.key)) is None
                else end.notice(),
                level=levels[contract.key],
            )
            for name, contract in versions.names.items()
        ]
        effects = {name: levels[contract.key] for name, contract in versions.names.items()}
        served_by = {name: serving[contract.key] for name, contract in versions.names.items()}
        digests = {name: contract.digest for name, contract in versions.names.items()}
        contexts = {
            name: self._contracts.served_contract[contract.key].shape.check_context
            for name, contract in versions.names.items()
            if contract.context_schema is not None
        }
        offering = read_contract_offering(
            KEY, self._config.root_segment, tools, effects, served_by, digests, contexts
        )
        for tool in offering.rejected:
            _log.warning("contract %s: not offered: %s", tool.name, tool.reason)
        floors = {
            tool.canonical: make_decision(
                PolicyAction.CONFIRM,
                f"contract:{tool.upstream_name}",
                "The contract requires approval by an operator.",
            )
            for tool in offering.tools
            for contract in (versions.names[tool.upstream_name],)
            if approval_floor(contract, levels[contract.key])
        }
        self._floors.replace(floors)
        self._catalog.publish(offering)

    def _post_ended(self, names: list[str]) -> None:
        """Publish names of ended contracts. They are in no list, and a call of one explains the
        replacement."""
        if not names:
            self._withdraw(ENDED)
            return
        tools = [
            encode_value(
                {
                    "name": name,
                    "description": "It is no longer served.",
                    "inputSchema": {"type": "object"},
                }
            )
            for name in names
        ]
        # A call of an ended contract does nothing, so it needs no approval.
        effects = dict.fromkeys(names, EffectLevel.READ_ONLY)
        offering = read_contract_offering(ENDED, self._config.root_segment, tools, effects)
        self._upstreams[ENDED] = self._contracts
        self._catalog.publish(offering)

    def _schedule_next_end(self, deprecations: Mapping[str, MajorDeprecation], now: float) -> None:
        delay = min(
            (end.ends_at - now for end in deprecations.values() if end.ends_at > now), default=None
        )
        if delay is not None:
            self._end_timer = asyncio.get_running_loop().call_later(
                min(delay, MAX_WAIT_SECONDS), self.publish
            )

    def _cancel_timers(self) -> None:
        if self._soon_handle is not None:
            self._soon_handle.cancel()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._soon_handle = self._end_timer = None

    def withdraw_all(self) -> None:
        """Withdraw all contracts."""
        self._cancel_timers()
        if self._posted_state is not None:
            self._posted_state = None
            self._floors.replace({})
            self._withdraw(KEY)
            self._withdraw(ENDED)

    def _withdraw(self, key: str) -> None:
        self._catalog.withdraw(key)
        self._upstreams.pop(key, None)

    def set_aside(self) -> dict[str, str]:
        """Return the names under which contracts are not offered, with the reasons."""
        return {
            tool.upstream_name: reason
            for tool, reason in self._catalog.current.contracts_not_offered()
            if tool.upstream == KEY
        }

    # -- prompts and resources

    def on_offering(
        self, driver: Driver, supervisor: Supervisor, *, other_drivers: Iterable[Driver]
    ) -> None:
        """Publish the prompts and resources that a driver's server has listed."""
        manifest, offer = driver.manifest, supervisor.raw_offering
        listed_capabilities = supervisor.capabilities
        capabilities: dict[str, Any] = {
            name: listed_capabilities[name]
            for name in ("logging",)
            if listed_capabilities.get(name) not in (None, False)
        }
        driver.capabilities = capabilities
        if not self._config.section(DriversConfig).preview or not (
            manifest.prompts or manifest.resources
        ):
            return
        prompts, missing = declared_prompts(manifest, offer.prompts)
        resources, templates, missing_resources = declared_resources(
            manifest, offer.resources, offer.templates
        )
        for text in (*missing, *missing_resources):
            driver.warn(text)
        kinds = {"prompts": prompts, "resources": resources or templates}
        for name in ("prompts", "resources", "completions"):
            if listed_capabilities.get(name) not in (None, False) and kinds.get(name, True):
                capabilities[name] = listed_capabilities[name]
        self._catalog.publish(
            read_offering(
                driver.key,
                ServerConfig(segment=_segment(driver, other_drivers)),
                (),
                prompts=prompts,
                resources=resources,
                templates=templates,
                root_segment=self._config.root_segment,
            )
        )

    def withdraw(self, driver: Driver) -> None:
        """Withdraw the offering of a removed driver."""
        self._withdraw(driver.key)


def introduction_of(driver: Driver) -> UpstreamIntroduction:
    """Return the capabilities of a driver's server for the node's introduction."""
    return UpstreamIntroduction(default_segment(driver.manifest.id), driver.capabilities)


def _segment(driver: Driver, other_drivers: Iterable[Driver]) -> str:
    """Return the name prefix of a driver's prompts: its id, with the major version if a lower major
    of the driver exists."""
    manifest = driver.manifest
    segment = default_segment(manifest.id)
    majors = [other.manifest.major for other in other_drivers if other.manifest.id == manifest.id]
    return segment if manifest.major <= min(majors, default=manifest.major) else (
        f"{segment}-v{manifest.major}"
    )  # fmt: skip
