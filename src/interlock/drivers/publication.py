"""What of the drivers is offered in the catalog: each contract that somebody serves as one tool,
and the prompts and resources that drivers declare."""

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
from interlock.trust.policy.decision import decision

_log = logging.getLogger("interlock.drivers")

ENDED: Final = ENDED_CONTRACTS
"""The upstream of names that were served once: a call of one is told where to go on."""
MAX_WAIT_SECONDS: Final = 86_400.0

ContractRecorder = Callable[[str, str, bytes, str], object]
"""Takes the name of a contract, its version, its definition and where it was written."""
DeprecationLookup = Callable[[Iterable[ToolContract]], Mapping[str, MajorDeprecation]]


class DriverPublisher:
    """Posts what drivers offer."""

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
        declare: records every contract that is offered, for its history.
        deprecations: the majors of contracts that are deprecated.
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
        self._posted: tuple[object, ...] | None = None
        """What is posted was made of this. None: nothing is."""
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def configure(self, config: Config) -> None:
        """Use a new config."""
        self._config = config

    @property
    def posted(self) -> bool:
        return self._posted is not None

    def soon(self) -> None:
        """Something is known that was not: soon, and once for many."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.now)

    def now(self) -> None:
        """Offer every contract that somebody serves, as far as is known."""
        self._rest()
        served = self._contracts.served
        usable = [
            contract.contract
            for key, contract in served.items()
            if any(driver.serves(key) for driver in contract.drivers)
        ]
        levels = {contract.key: served[contract.key].level for contract in usable}
        serving = {contract.key: served[contract.key].served_by for contract in usable}
        ends = self.deprecations(usable)
        now = self.wall_clock()
        for contract in served.values():
            contract.deprecation = ends.get(contract.contract.key)
        self._schedule_next_end(ends, now)
        made_of = (
            self._config.root_segment,
            tuple(
                (contract.key, contract.digest, levels[contract.key], serving[contract.key])
                for contract in usable
            ),
            tuple((key, end, end.ends_at <= now) for key, end in sorted(ends.items())),
        )
        if made_of == self._posted or (not usable and self._posted is None):
            return
        self._posted = made_of
        versions = self._contracts.versions = ContractVersions(usable, ends, now)
        for clash in versions.clashes:
            _log.warning("%s", clash)
        self._upstreams[KEY] = self._contracts
        self._post_contracts(versions, ends, levels, serving)
        for contract in usable:
            known = (contract.key, contract.digest)
            if known not in self._declared:
                self._declared.add(known)
                told = definition(contract, name=contract.id)
                self._declare(contract.id, contract.version, told, f"contract:{contract.file.name}")
        gone = [
            contract
            for contract in usable
            if contract.key in ends and ends[contract.key].ends_at <= now
        ]
        names = {
            name
            for contract in gone
            for name in (contract.id, versioned_name(contract.id, contract.major))
        }
        self._post_ended(sorted(names - versions.names.keys()))

    def _post_contracts(
        self,
        versions: ContractVersions,
        ends: Mapping[str, MajorDeprecation],
        levels: Mapping[str, EffectLevel],
        serving: Mapping[str, tuple[str, ...]],
    ) -> None:
        tools = [
            definition(
                contract,
                name=name,
                deprecation=None if (end := ends.get(contract.key)) is None else end.notice(),
                level=levels[contract.key],
            )
            for name, contract in versions.names.items()
        ]
        effects = {name: levels[contract.key] for name, contract in versions.names.items()}
        served_by = {name: serving[contract.key] for name, contract in versions.names.items()}
        digests = {name: contract.digest for name, contract in versions.names.items()}
        contexts = {
            name: self._contracts.served[contract.key].shape.check_context
            for name, contract in versions.names.items()
            if contract.context_schema is not None
        }
        offering = read_contract_offering(
            KEY, self._config.root_segment, tools, effects, served_by, digests, contexts
        )
        for tool in offering.set_aside:
            _log.warning("the contract %s is not offered: %s", tool.name, tool.reason)
        floors = {
            tool.canonical: decision(
                PolicyAction.CONFIRM,
                f"contract:{tool.upstream_name}",
                "Its contract asks for a human's approval.",
            )
            for tool in offering.tools
            for contract in (versions.names[tool.upstream_name],)
            if approval_floor(contract, levels[contract.key])
        }
        self._floors.replace(floors)
        self._catalog.publish(offering)

    def _post_ended(self, names: list[str]) -> None:
        """Names that are in no list, and lead to an explanation."""
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
        # Nothing is done by a call of them, and nobody has to say yes to it.
        effects = dict.fromkeys(names, EffectLevel.READ_ONLY)
        offering = read_contract_offering(ENDED, self._config.root_segment, tools, effects)
        self._upstreams[ENDED] = self._contracts
        self._catalog.publish(offering)

    def _schedule_next_end(self, ends: Mapping[str, MajorDeprecation], now: float) -> None:
        left = min((end.ends_at - now for end in ends.values() if end.ends_at > now), default=None)
        if left is not None:
            self._later = asyncio.get_running_loop().call_later(
                min(left, MAX_WAIT_SECONDS), self.now
            )

    def _rest(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        if self._later is not None:
            self._later.cancel()
        self._soon = self._later = None

    def withdraw_all(self) -> None:
        """Offer no contract any more."""
        self._rest()
        if self._posted is not None:
            self._posted = None
            self._floors.replace({})
            self._withdraw(KEY)
            self._withdraw(ENDED)

    def _withdraw(self, key: str) -> None:
        self._catalog.withdraw(key)
        self._upstreams.pop(key, None)

    def set_aside(self) -> dict[str, str]:
        """Names under which contracts are not offered, and why."""
        return {
            tool.upstream_name: why
            for tool, why in self._catalog.current.contracts_not_offered()
            if tool.upstream == KEY
        }

    # -- prompts and resources

    def offered(self, driver: Driver, supervisor: Supervisor, *, others: Iterable[Driver]) -> None:
        """A driver's server has listed what it has."""
        manifest, offer = driver.manifest, supervisor.offer
        said = supervisor.capabilities
        offers: dict[str, Any] = {
            name: said[name] for name in ("logging",) if said.get(name) not in (None, False)
        }
        driver.capabilities = offers
        if not self._config.section(DriversConfig).preview or not (
            manifest.prompts or manifest.resources
        ):
            return
        prompts, missing = declared_prompts(manifest, offer.prompts)
        resources, templates, more = declared_resources(manifest, offer.resources, offer.templates)
        for text in (*missing, *more):
            driver.warn(text)
        kinds = {"prompts": prompts, "resources": resources or templates}
        for name in ("prompts", "resources", "completions"):
            if said.get(name) not in (None, False) and kinds.get(name, True):
                offers[name] = said[name]
        self._catalog.publish(
            read_offering(
                driver.key,
                ServerConfig(segment=_segment(driver, others)),
                (),
                prompts=prompts,
                resources=resources,
                templates=templates,
                root_segment=self._config.root_segment,
            )
        )

    def withdraw(self, driver: Driver) -> None:
        """A driver is no more."""
        self._withdraw(driver.key)


def introduction_of(driver: Driver) -> UpstreamIntroduction:
    """What a driver's server can do beside contracts, for whoever introduces the node."""
    return UpstreamIntroduction(default_segment(driver.manifest.id), driver.capabilities)


def _segment(driver: Driver, others: Iterable[Driver]) -> str:
    """What stands before the names of its prompts: its id, with its major where another major of it
    was there first."""
    manifest = driver.manifest
    segment = default_segment(manifest.id)
    majors = [other.manifest.major for other in others if other.manifest.id == manifest.id]
    return segment if manifest.major <= min(majors, default=manifest.major) else (
        f"{segment}-v{manifest.major}"
    )  # fmt: skip
