"""How drivers stand where no node runs that could say so: by their files, by what is installed, and
by which secrets there are. Nothing is started."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from interlock.drivers.binding import check_entry
from interlock.drivers.commands.workspace import DriverProject
from interlock.drivers.component import this_machine
from interlock.drivers.config import DriversConfig
from interlock.drivers.installation import installed_bin, not_installed
from interlock.drivers.resolver import (
    Candidate,
    DriverChoice,
    DriverCondition,
    SelectionPolicy,
    route,
)
from interlock.drivers.sign_in_state import SignInState
from interlock.drivers.signature_check import refusal
from interlock.drivers.standalone import installed_folder, sign_in_of
from interlock.drivers.status import BindingStatus, DriverStatus
from interlock.manifests.model import DriverManifest, ToolContract


async def condition_of(manifest: DriverManifest, project: DriverProject) -> DriverCondition:
    """What is known of a driver."""
    condition = DriverCondition(rejection=refusal(manifest, project.config, project.base_dir))
    auth = sign_in_of(manifest, project)
    condition.authed = await auth.read_state() is SignInState.AUTHED
    condition.auth_problem = auth.instruction
    if not project.settings.allow_install and not _installed(manifest, project):
        condition.install_failed = not_installed(manifest.id)
    return condition


def _installed(manifest: DriverManifest, project: DriverProject) -> bool:
    """Whether its program is there, as far as can be told without running anything."""
    server = manifest.server
    if server is None or server.kind == "remote" or not manifest.install:
        return True
    folder = installed_folder(manifest, project.config, project.base_dir)
    if installed_bin(manifest, folder) is not None:
        return True
    if server.kind == "binary":
        name = str(manifest.folder / server.path) if "/" in server.path else server.path
        return shutil.which(name) is not None
    # Whether an image is there, only its engine knows.
    return server.kind == "docker" and shutil.which("docker") is not None


async def statuses(project: DriverProject) -> list[DriverStatus]:
    """Every driver, as a node would show it."""
    found = []
    for manifest in project.workspace.drivers.values():
        condition = await condition_of(manifest, project)
        found.append(
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
    return found + [
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
    known: dict[str, DriverStatus],
) -> DriverChoice:
    """Which driver a call with these inputs would go to. `known`: what a running node told."""
    candidates = []
    for key in project.workspace.serving.get(contract.key, ()):
        manifest = project.workspace.drivers[key]
        bound = next(
            binding
            for binding in project.workspace.bindings[key]
            if binding.contract.key == contract.key
        )
        condition = await condition_of(manifest, project)
        has_code = (manifest.folder / "driver.py").is_file()
        wrong = [] if has_code else check_entry(contract, bound.entry)
        if wrong and not condition.rejection:
            condition.rejection = " ".join(wrong)
        _as_told(condition, known.get(manifest.id), contract.key)
        candidates.append(Candidate(manifest, bound.entry, condition))
    return route(
        contract,
        candidates,
        list(inputs),
        workspace=allowed(project.settings, region),
        machine=this_machine(project.base_dir),
        pinned=pinned,
        now=time.time(),
    )


def _as_told(condition: DriverCondition, told: DriverStatus | None, contract: str) -> None:
    """A running node knows better."""
    if told is None:
        return
    condition.authed = told.state != "unauthed"
    condition.auth_problem = "" if condition.authed else told.problem
    problems = [
        problem
        for bound in told.bindings
        if bound.contract == contract
        for problem in bound.problems
    ]
    if told.state == "refused":
        condition.rejection = told.problem or "; ".join(problems) or condition.rejection
    elif problems:
        condition.rejection = "; ".join(problems)
    if told.state in ("running", "ready"):
        condition.install_failed = ""


def allowed(settings: DriversConfig, region: str | None = None) -> SelectionPolicy:
    """Which drivers a node of this config may use."""
    policy = settings.policy
    return SelectionPolicy(
        region=settings.region if region is None else region,
        strict_region=settings.strict_region,
        forbid=tuple(policy.forbid),
        require=tuple(policy.require),
        allow=tuple(policy.allow),
        pins=dict(settings.pins),
        trusted_tags={tag: tuple(ids) for tag, ids in policy.trusted_tags.items()},
    )
