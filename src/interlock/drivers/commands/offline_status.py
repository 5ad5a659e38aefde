"""The status of drivers without a running node: by their files, installed programs and available
secrets. No server is started."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from interlock.drivers.binding import check_entry
from interlock.drivers.commands.workspace import DriverProject
from interlock.drivers.component import selection_policy, this_machine
from interlock.drivers.installation import installed_bin, not_installed
from interlock.drivers.resolver import (
    Candidate,
    DriverChoice,
    DriverCondition,
    route,
)
from interlock.drivers.sign_in_state import SignInState
from interlock.drivers.signature_check import find_rejection
from interlock.drivers.standalone import installed_folder, sign_in_of
from interlock.drivers.status import BindingStatus, DriverStatus
from interlock.manifests.model import DriverManifest, ToolContract


async def condition_of(manifest: DriverManifest, project: DriverProject) -> DriverCondition:
    """Return the condition of a driver."""
    condition = DriverCondition(
        rejection=find_rejection(manifest, project.config, project.base_dir)
    )
    auth = sign_in_of(manifest, project)
    condition.authed = await auth.read_state() is SignInState.AUTHED
    condition.auth_problem = auth.instruction
    if not project.settings.allow_install and not _installed(manifest, project):
        condition.install_failed = not_installed(manifest.id)
    return condition


def _installed(manifest: DriverManifest, project: DriverProject) -> bool:
    """Return whether the program is installed, as far as it can be known without running
    anything."""
    server = manifest.server
    if server is None or server.kind == "remote" or not manifest.install:
        return True
    folder = installed_folder(manifest, project.config, project.base_dir)
    if installed_bin(manifest, folder) is not None:
        return True
    if server.kind == "binary":
        name = str(manifest.folder / server.path) if "/" in server.path else server.path
        return shutil.which(name) is not None
    # Only the container engine knows whether an image is installed.
    return server.kind == "docker" and shutil.which("docker") is not None


async def statuses(project: DriverProject) -> list[DriverStatus]:
    """Return the status of every driver, as a node would show it."""
    rows = []
    for manifest in project.workspace.drivers.values():
        condition = await condition_of(manifest, project)
        rows.append(
            DriverStatus(
                id=manifest.id,
                version=manifest.version,
                kind=manifest.kind,
                state=_state(condition),
                file=str(manifest.file),
                problem=condition.rejection or condition.auth_problem or condition.install_failed,
                bindings=[
                    BindingStatus(
                        contract=binding.contract.key,
                        tool="" if binding.entry.mcp is None else binding.entry.mcp.tool_name,
                    )
                    for binding in project.workspace.bindings[manifest.key]
                ],
                egress=list(manifest.egress),
                warnings=[
                    str(caution) for caution in project.workspace.cautions.get(manifest.file, ())
                ],
            )
        )
    return rows + [
        DriverStatus.of_file(path, [str(problem) for problem in problems])
        for path, problems in project.workspace.problems.items()
    ]


def _state(condition: DriverCondition) -> str:
    if condition.rejection:
        return "refused"
    if not condition.authed:
        return "unauthed"
    return "failing" if condition.install_failed else "unverified"


async def decide(
    contract: ToolContract,
    project: DriverProject,
    inputs: Iterable[str],
    *,
    pinned: str | None,
    region: str | None,
    node_statuses: dict[str, DriverStatus],
) -> DriverChoice:
    """Decide which driver a call would go to.

    Args:
        known: statuses from a running node, by driver id.
    """
    candidates = []
    for key in project.workspace.serving.get(contract.key, ()):
        manifest = project.workspace.drivers[key]
        binding = next(
            binding
            for binding in project.workspace.bindings[key]
            if binding.contract.key == contract.key
        )
        condition = await condition_of(manifest, project)
        has_code = (manifest.folder / "driver.py").is_file()
        problems = [] if has_code else check_entry(contract, binding.entry)
        if problems and not condition.rejection:
            condition.rejection = " ".join(problems)
        _apply_node_status(condition, node_statuses.get(manifest.id), contract.key)
        candidates.append(Candidate(manifest, binding.entry, condition))
    return route(
        contract,
        candidates,
        list(inputs),
        workspace=selection_policy(project.settings, region),
        machine=this_machine(project.base_dir),
        pinned=pinned,
        now=time.time(),
    )


def _apply_node_status(
    condition: DriverCondition, status: DriverStatus | None, contract: str
) -> None:
    """Apply the status of a running node, which is more precise."""
    if status is None:
        return
    condition.authed = status.state != "unauthed"
    condition.auth_problem = "" if condition.authed else status.problem
    problems = [
        problem
        for binding in status.bindings
        if binding.contract == contract
        for problem in binding.problems
    ]
    if status.state == "refused":
        condition.rejection = status.problem or "; ".join(problems) or condition.rejection
    elif problems:
        condition.rejection = "; ".join(problems)
    if status.state in ("running", "ready"):
        condition.install_failed = ""
