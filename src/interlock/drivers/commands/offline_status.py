"""How drivers stand where no node runs that could say so: by their files, by what is installed, and
by which secrets there are. Nothing is started."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from interlock.drivers.binding import check_entry
from interlock.drivers.commands.workspace import Desk
from interlock.drivers.component import this_machine
from interlock.drivers.config import DriversConfig
from interlock.drivers.installation import installed_bin, not_installed
from interlock.drivers.resolver import Candidate, Decision, Standing, Workspace, route
from interlock.drivers.sign_in_state import State
from interlock.drivers.signature_check import refusal
from interlock.drivers.standalone import auth_state_of, installed_folder
from interlock.drivers.status import BindingStatus, DriverStatus
from interlock.manifests.model import DriverManifest, ToolContract


async def standing_of(manifest: DriverManifest, desk: Desk) -> Standing:
    """What is known of a driver."""
    standing = Standing(refused=refusal(manifest, desk.config, desk.base_dir))
    auth = auth_state_of(manifest, desk)
    standing.authed = await auth.look() is State.AUTHED
    standing.auth_problem = auth.what_to_do
    if not desk.settings.allow_install and not _installed(manifest, desk):
        standing.install_failed = not_installed(manifest.id)
    return standing


def _installed(manifest: DriverManifest, desk: Desk) -> bool:
    """Whether its program is there, as far as can be told without running anything."""
    server = manifest.server
    if server is None or server.kind == "remote" or not manifest.install:
        return True
    folder = installed_folder(manifest, desk.config, desk.base_dir)
    if installed_bin(manifest, folder) is not None:
        return True
    if server.kind == "binary":
        name = str(manifest.folder / server.path) if "/" in server.path else server.path
        return shutil.which(name) is not None
    # Whether an image is there, only its engine knows.
    return server.kind == "docker" and shutil.which("docker") is not None


async def statuses(desk: Desk) -> list[DriverStatus]:
    """Every driver, as a node would show it."""
    found = []
    for manifest in desk.workspace.drivers.values():
        standing = await standing_of(manifest, desk)
        found.append(
            DriverStatus(
                id=manifest.id,
                version=manifest.version,
                kind=manifest.kind,
                state=_state(standing),
                file=str(manifest.file),
                problem=standing.refused or standing.auth_problem or standing.install_failed,
                bindings=[
                    BindingStatus(
                        contract=one.contract.key,
                        tool="" if one.entry.mcp is None else one.entry.mcp.tool_name,
                    )
                    for one in desk.workspace.bindings[manifest.key]
                ],
                egress=list(manifest.egress),
                warnings=[str(one) for one in desk.workspace.cautions.get(manifest.file, ())],
            )
        )
    return found + [
        DriverStatus.of_file(path, [str(one) for one in problems])
        for path, problems in desk.workspace.problems.items()
    ]


def _state(standing: Standing) -> str:
    if standing.refused:
        return "refused"
    if not standing.authed:
        return "unauthed"
    return "failing" if standing.install_failed else "unverified"


async def decide(
    contract: ToolContract,
    desk: Desk,
    inputs: Iterable[str],
    *,
    pinned: str | None,
    region: str | None,
    known: dict[str, DriverStatus],
) -> Decision:
    """Which driver a call with these inputs would go to. `known`: what a running node told."""
    candidates = []
    for key in desk.workspace.serving.get(contract.key, ()):
        manifest = desk.workspace.drivers[key]
        bound = next(
            one for one in desk.workspace.bindings[key] if one.contract.key == contract.key
        )
        standing = await standing_of(manifest, desk)
        has_code = (manifest.folder / "driver.py").is_file()
        wrong = [] if has_code else check_entry(contract, bound.entry)
        if wrong and not standing.refused:
            standing.refused = " ".join(wrong)
        _as_told(standing, known.get(manifest.id), contract.key)
        candidates.append(Candidate(manifest, bound.entry, standing))
    return route(
        contract,
        candidates,
        list(inputs),
        workspace=allowed(desk.settings, region),
        machine=this_machine(desk.base_dir),
        pinned=pinned,
        now=time.time(),
    )


def _as_told(standing: Standing, told: DriverStatus | None, contract: str) -> None:
    """A running node knows better."""
    if told is None:
        return
    standing.authed = told.state != "unauthed"
    standing.auth_problem = "" if standing.authed else told.problem
    problems = [
        one for bound in told.bindings if bound.contract == contract for one in bound.problems
    ]
    if told.state == "refused":
        standing.refused = told.problem or "; ".join(problems) or standing.refused
    elif problems:
        standing.refused = "; ".join(problems)
    if told.state in ("running", "ready"):
        standing.install_failed = ""


def allowed(settings: DriversConfig, region: str | None = None) -> Workspace:
    """Which drivers a node of this config may use."""
    policy = settings.policy
    return Workspace(
        region=settings.region if region is None else region,
        strict_region=settings.strict_region,
        forbid=tuple(policy.forbid),
        require=tuple(policy.require),
        allow=tuple(policy.allow),
        pins=dict(settings.pins),
        trusted_tags={tag: tuple(ids) for tag, ids in policy.trusted_tags.items()},
    )
