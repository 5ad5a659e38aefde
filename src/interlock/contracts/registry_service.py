"""Asynchronous access to the contract registry for the HTTP API. The registry is opened by the
first request, and works off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw

from interlock.contracts.registry.records import (
    PROTOCOLS,
    Commit,
    StoredContract,
    Validation,
    invalid_request,
)

if TYPE_CHECKING:
    from interlock.contracts.registry.registry import ContractRegistry

T = TypeVar("T")


class RegistryService:
    """Access to one registry, if the node has one."""

    def __init__(self, open: Callable[[], ContractRegistry] | None = None) -> None:
        self._open = open
        self._registry: ContractRegistry | None = None
        self._lock = threading.Lock()

    @property
    def is_available(self) -> bool:
        return self._open is not None

    def use_registry(self, open: Callable[[], ContractRegistry] | None) -> None:
        """Use another registry from now on. None: the node has no registry."""
        self.close()
        self._open = open

    def close(self) -> None:
        with self._lock:
            registry, self._registry = self._registry, None
            if registry is not None:
                registry.close()

    # -- requests

    async def search(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the matching contracts, and the metrics of the registry."""

        def search(registry: ContractRegistry) -> dict[str, Any]:
            contracts = registry.search(
                name=query.get("name"),
                range=query.get("version"),
                domain=query.get("domain"),
                protocol=_protocol(query),
                source=query.get("source"),
                generator_version=query.get("generator_version"),
                since=query.get("since"),
                until=query.get("until"),
            )
            return {
                "contracts": [summarize_contract(contract) for contract in contracts],
                "registry": registry.metrics(),
            }

        return await self._run(search)

    async def find(self, name: str, query: dict[str, str]) -> tuple[dict[str, Any], StoredContract]:
        """Return one contract with its schema and provenance, and its stored form."""

        def find(registry: ContractRegistry) -> tuple[dict[str, Any], StoredContract]:
            contract = registry.find(
                name,
                query.get("version") or "*",
                domain=query.get("domain"),
                protocol=_protocol(query),
            )
            return describe_contract(contract), contract

        return await self._run(find)

    async def log(self, name: str, limit: int) -> list[Commit]:
        """Return who published what of a contract, newest first."""
        return await self._run(lambda registry: registry.history(name, limit))

    async def validate(self, name: str, payload: Any, query: dict[str, str]) -> Validation:
        """Validate a payload against a contract."""
        part = query.get("part") or "input"
        if part not in ("input", "output"):
            raise invalid_request("`part` must be `input` or `output`.")
        return await self._run(
            lambda registry: registry.validate(
                name,
                query.get("version") or "*",
                payload,
                domain=query.get("domain"),
                protocol=_protocol(query),
                part=part,
            )
        )

    async def _run(self, query: Callable[[ContractRegistry], T]) -> T:
        return await asyncio.to_thread(lambda: query(self._open_registry()))

    def _open_registry(self) -> ContractRegistry:
        with self._lock:
            if self._registry is None:
                assert self._open is not None
                self._registry = self._open()
            return self._registry


def summarize_contract(contract: StoredContract) -> dict[str, Any]:
    """Return the members of a contract in a list."""
    members: dict[str, Any] = {
        "name": contract.name,
        "version": contract.version,
        "domain": contract.domain,
        "protocol": contract.protocol,
        "digest": contract.digest,
        "path": contract.path,
        "provenance": contract.provenance,
    }
    if contract.deprecation is not None:
        members["deprecation"] = contract.deprecation
    return members


def describe_contract(contract: StoredContract) -> dict[str, Any]:
    """Return the members of a contract, with its document."""
    schema = contract.schema() if contract.protocol == "protobuf" else Raw(contract.document)
    return {**summarize_contract(contract), "schema": schema}


def _protocol(query: dict[str, str]) -> Any:
    protocol = query.get("protocol")
    if protocol is not None and protocol not in PROTOCOLS:
        raise invalid_request(f"`protocol` must be one of {', '.join(PROTOCOLS)}.")
    return protocol
