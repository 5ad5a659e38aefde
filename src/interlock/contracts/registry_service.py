"""The contract registry as the HTTP face asks it: off the event loop, opened when somebody first
asks."""

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
    refused,
)

if TYPE_CHECKING:
    from interlock.contracts.registry.registry import ContractRegistry

T = TypeVar("T")


class RegistryService:
    """One registry, or none."""

    def __init__(self, open: Callable[[], ContractRegistry] | None = None) -> None:
        self._open = open
        self._registry: ContractRegistry | None = None
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self._open is not None

    def look_into(self, open: Callable[[], ContractRegistry] | None) -> None:
        """Another one from now on. None: there is none."""
        self.close()
        self._open = open

    def close(self) -> None:
        with self._lock:
            registry, self._registry = self._registry, None
            if registry is not None:
                registry.close()

    # -- what the face asks

    async def search(self, asked: dict[str, str]) -> dict[str, Any]:
        """The contracts that fit, and how the registry fares."""

        def ask(registry: ContractRegistry) -> dict[str, Any]:
            found = registry.search(
                name=asked.get("name"),
                range=asked.get("version"),
                domain=asked.get("domain"),
                protocol=_protocol(asked),
                source=asked.get("source"),
                generator_version=asked.get("generator_version"),
                since=asked.get("since"),
                until=asked.get("until"),
            )
            return {
                "contracts": [summary(one) for one in found],
                "registry": registry.metrics(),
            }

        return await self._ask(ask)

    async def find(self, name: str, asked: dict[str, str]) -> tuple[dict[str, Any], StoredContract]:
        """One contract with its schema and provenance; and as it is stored."""

        def ask(registry: ContractRegistry) -> tuple[dict[str, Any], StoredContract]:
            found = registry.find(
                name,
                asked.get("version") or "*",
                domain=asked.get("domain"),
                protocol=_protocol(asked),
            )
            return described(found), found

        return await self._ask(ask)

    async def log(self, name: str, most: int) -> list[Commit]:
        """Who published what of a contract, newest first."""
        return await self._ask(lambda registry: registry.history(name, most))

    async def validate(self, name: str, payload: Any, asked: dict[str, str]) -> Validation:
        """Whether a payload is what a contract asks for."""
        part = asked.get("part") or "input"
        if part not in ("input", "output"):
            raise refused("`part` is `input` or `output`.")
        return await self._ask(
            lambda registry: registry.validate(
                name,
                asked.get("version") or "*",
                payload,
                domain=asked.get("domain"),
                protocol=_protocol(asked),
                part=part,
            )
        )

    async def _ask(self, question: Callable[[ContractRegistry], T]) -> T:
        return await asyncio.to_thread(lambda: question(self._opened()))

    def _opened(self) -> ContractRegistry:
        with self._lock:
            if self._registry is None:
                assert self._open is not None
                self._registry = self._open()
            return self._registry


def summary(one: StoredContract) -> dict[str, Any]:
    """A contract in a list."""
    told: dict[str, Any] = {
        "name": one.name,
        "version": one.version,
        "domain": one.domain,
        "protocol": one.protocol,
        "digest": one.digest,
        "path": one.path,
        "provenance": one.provenance,
    }
    if one.deprecation is not None:
        told["deprecation"] = one.deprecation
    return told


def described(one: StoredContract) -> dict[str, Any]:
    """The same with its document."""
    schema = one.schema() if one.protocol == "protobuf" else Raw(one.document)
    return {**summary(one), "schema": schema}


def _protocol(asked: dict[str, str]) -> Any:
    protocol = asked.get("protocol")
    if protocol is not None and protocol not in PROTOCOLS:
        raise refused(f"`protocol` is one of {', '.join(PROTOCOLS)}.")
    return protocol
