"""What the resolver is told: drivers and what is known of them, the machine, and the workspace."""

from __future__ import annotations

from msgspec import Struct, field

from interlock.manifests.driver import DriverManifest, Implements


class Standing(Struct):
    """What is known about one driver right now."""

    refused: str = ""
    """Why it may not be used at all: its binding or its registration failed."""
    install_failed: str = ""
    version_problem: str = ""
    authed: bool = True
    auth_problem: str = ""
    """Why nobody is signed in with it, and what to do, in whole sentences."""
    login_only: bool = False
    """It can be used without being signed in, and signs in when it is."""
    health_failed_at: float | None = None
    health_passed_at: float | None = None
    circuit_open: bool = False


class Candidate(Struct, frozen=True):
    """A driver that says it serves the contract."""

    driver: DriverManifest
    entry: Implements
    standing: Standing


class Machine(Struct, frozen=True):
    """What `requires` is held against, in its own words (linux, x64)."""

    os: str
    arch: str
    disk_mb: int
    memory_mb: int


class Workspace(Struct, frozen=True):
    """Which drivers may be used here."""

    region: str | None = None
    strict_region: bool = False
    """Whether a global driver is not good enough."""
    forbid: tuple[str, ...] = ()
    """A driver with any of these tags is out."""
    require: tuple[str, ...] = ()
    """A driver without any one of these tags is out."""
    allow: tuple[str, ...] = ()
    """If there are any: a driver with another tag is out."""
    pins: dict[str, str] = field(default_factory=dict)
    """Contract (id or id@major) → driver (id or id@major)."""
    trusted_tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tag → the drivers that are believed to have it. A tag that is not here is believed of all."""


class Rejection(Struct, frozen=True):
    """Why a driver was not taken."""

    driver: str
    """id@major"""
    phase: int
    reason: str
    code: str
    """The error that it would be if nobody else could serve the call."""


def believed_tags(driver: DriverManifest, workspace: Workspace) -> tuple[str, ...]:
    """The tags of a driver that count in its favour."""
    return tuple(tag for tag in driver.policy_tags if _is_believed(tag, driver, workspace))


def tag_warnings(driver: DriverManifest, workspace: Workspace) -> list[str]:
    """Tags that a driver gives itself and that this workspace does not believe."""
    return [
        f"driver {driver.id}: it says that it is {tag!r}, and is not among those that are believed "
        "to be (trusted_tags): the tag does not count."
        for tag in driver.policy_tags
        if not _is_believed(tag, driver, workspace)
    ]


def _is_believed(tag: str, driver: DriverManifest, workspace: Workspace) -> bool:
    trusted = workspace.trusted_tags.get(tag)
    return trusted is None or driver.id in trusted or driver.key in trusted
