"""The status of drivers and contracts, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from interlock.drivers.contract_upstream import ContractUpstream
    from interlock.drivers.driver import Driver
    from interlock.manifests.model import DriverManifest


class BindingStatus(msgspec.Struct, frozen=True):
    """A contract that a driver implements, with the problems of the implementation."""

    contract: str
    """id@major"""
    tool: str
    """The tool of the driver's server."""
    problems: list[str] = []
    warnings: list[str] = []


class DriverStatus(msgspec.Struct, frozen=True):
    """The status of one driver."""

    id: str
    version: str
    kind: str
    state: str
    """`running`, `ready` (starts when needed), `unverified`, `unauthed`, `failing` or `refused`."""
    file: str
    problem: str = ""
    bindings: list[BindingStatus] = []
    calls: int = 0
    pid: int | None = None
    revision: str = ""
    """The MCP revision of the connection, while the server runs."""
    egress: list[str] = []
    warnings: list[str] = []
    skills: dict[str, list[str]] = {}
    """Names of prompts that are blocks of a skill, by the skill's file."""

    @classmethod
    def of_file(cls, path: Path, problems: list[str]) -> DriverStatus:
        """Return the status of an invalid file."""
        return cls(
            id=path.parent.name,
            version="",
            kind="",
            state="refused",
            file=str(path),
            problem="\n".join(problems),
        )

    @classmethod
    def of_manifest(cls, manifest: DriverManifest) -> DriverStatus:
        """Return the status of a driver whose kind this node does not run."""
        return cls(
            id=manifest.id,
            version=manifest.version,
            kind=manifest.kind,
            state="refused",
            file=str(manifest.file),
            problem=f"This node runs only drivers of kind mcp, not {manifest.kind}.",
        )


class ContractStatus(msgspec.Struct, frozen=True):
    """The status of a contract: its names and its drivers."""

    key: str
    names: list[str]
    version: str
    drivers: list[str]
    problem: str = ""
    """Why it is not offered, or not under all of its names."""


class DriversStatus(msgspec.Struct, frozen=True):
    """The drivers part of a node's status."""

    drivers: list[DriverStatus] = []
    """Drivers of the workspace, including invalid ones."""
    contracts: list[ContractStatus] = []
    """Contracts that drivers serve."""


def status_of(driver: Driver, invalid: Sequence[str] = ()) -> DriverStatus:
    """Return the status of a driver.

    Args:
        invalid: current problems of its file, which was valid when the driver was created.
    """
    manifest, supervisor, condition = driver.manifest, driver.supervisor, driver.condition
    peer = None if supervisor is None else supervisor.upstream_client
    skills: dict[str, list[str]] = {}
    for prompt in manifest.prompts:
        if prompt.integrate_as == "skill_block":
            skills.setdefault(prompt.skill_ref, []).append(prompt.name)
    problem = (
        condition.rejection
        or condition.auth_problem
        or condition.install_failed
        or condition.version_problem
        or driver.problem
    )
    if invalid:
        notice = f"Invalid {manifest.file.name}; version {manifest.version} stays in use."
        problems = [problem] if condition.rejection else [notice, *filter(None, [problem])]
        problem = "\n".join([*problems, *invalid])
    return DriverStatus(
        id=manifest.id,
        version=manifest.version,
        kind=manifest.kind,
        state=_state(driver),
        file=str(manifest.file),
        problem=problem,
        bindings=[
            BindingStatus(
                contract=key,
                tool="" if binding.entry.mcp is None else binding.entry.mcp.tool_name,
                problems=[*binding.file_problems, *binding.problems],
                warnings=list(binding.warnings),
            )
            for key, binding in driver.bindings.items()
        ],
        calls=driver.calls,
        pid=None if peer is None else getattr(peer.transport, "pid", None),
        revision="" if peer is None else peer.revision,
        egress=list(manifest.egress),
        warnings=list(driver.warnings),
        skills=skills,
    )


def contracts_of(
    contracts: ContractUpstream, set_aside: Mapping[str, str], broken: Mapping[str, str]
) -> list[ContractStatus]:
    """Return the status of contracts.

    Args:
        set_aside: names that are not offered, with the reasons.
        broken: incompatible changes, by contract key.
    """
    names: dict[str, list[str]] = {}
    problems = {key: [sentence] for key, sentence in broken.items()}
    for name, contract in contracts.versions.names.items():
        if name in set_aside:
            problems.setdefault(contract.key, []).append(f"{name}: {set_aside[name]}")
        else:
            names.setdefault(contract.key, []).append(name)
    return [
        ContractStatus(
            key=key,
            names=sorted(names.get(key, ())),
            version=served_contract.contract.version,
            drivers=[driver.manifest.key for driver in served_contract.drivers],
            problem=" ".join(problems.get(key, ())),
        )
        for key, served_contract in contracts.served_contract.items()
    ]


def _state(driver: Driver) -> str:
    condition = driver.condition
    if condition.rejection or (
        driver.bindings and not any(b.is_usable for b in driver.bindings.values())
    ):
        return "refused"
    if not condition.authed:
        return "unauthed"
    if driver.supervisor is not None and driver.supervisor.upstream_client is not None:
        return "running"
    if driver.problem or condition.install_failed or condition.version_problem:
        return "failing"
    return "ready" if driver.verified else "unverified"
