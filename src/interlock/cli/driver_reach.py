"""Reaching the server of one driver from the command line: by the same way as any other program
without a node (`interlock.drivers.visiting`), told in words for print."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from interlock.call import UpstreamGoneError
from interlock.cli import say
from interlock.cli.driver_workspace import Desk
from interlock.config import redact_about
from interlock.drivers import visiting
from interlock.drivers.visiting import Visit as Visit
from interlock.drivers.visiting import asker_of as asker_of
from interlock.drivers.visiting import auth_state_of as auth_state_of
from interlock.drivers.visiting import installed_folder as installed_folder
from interlock.drivers.visiting import named as named
from interlock.drivers.visiting import objects as objects
from interlock.drivers.visiting import prepared as prepared
from interlock.drivers.visiting import vault_of as vault_of
from interlock.errors import InterlockError
from interlock.manifests.driver import DriverManifest
from interlock.manifests.secret import SecretsInventory
from interlock.upstreams.drivers.installing import Progress


def visit(
    manifest: DriverManifest,
    desk: Desk,
    *,
    inventory: SecretsInventory | None = None,
    may_install: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> AbstractAsyncContextManager[Visit]:
    """The server of a driver, for as long as the block lasts. Entering it raises InterlockError.

    `inventory`: secrets that are in no file yet. `may_install`: besides what the config allows.
    """
    return visiting.visit(
        manifest,
        desk,
        inventory=inventory,
        may_install=may_install,
        progress=progress,
        warn=warn,
        where="on the command line",
    )


def told_of(id: str, error: InterlockError) -> str:
    """Why a driver's server could not be asked, for print. Its own words are a stranger's."""
    own = isinstance(error, UpstreamGoneError)
    return say.printable(redact_about(id, error.message) if own else error.message)
