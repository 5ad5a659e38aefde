"""Reaching the server of one driver from the command line: by the same way as any other program
without a node (`interlock.drivers.standalone`), told in words for print."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from interlock.core.call import UpstreamLostError
from interlock.core.config import redact_about
from interlock.drivers import standalone
from interlock.drivers.commands.workspace import DriverProject
from interlock.drivers.installation import Progress
from interlock.drivers.standalone import StandaloneServer
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest, SecretsInventory
from interlock.terminal import output


def open_server(
    manifest: DriverManifest,
    project: DriverProject,
    *,
    inventory: SecretsInventory | None = None,
    may_install: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> AbstractAsyncContextManager[StandaloneServer]:
    """The server of a driver, for as long as the block lasts. Entering it raises InterlockError.

    `inventory`: secrets that are in no file yet. `may_install`: besides what the config allows.
    """
    return standalone.open_server(
        manifest,
        project,
        inventory=inventory,
        may_install=may_install,
        progress=progress,
        warn=warn,
        location="on the command line",
    )


def connection_error_text(id: str, error: InterlockError) -> str:
    """Why a driver's server could not be asked, for print. Its own words are a stranger's."""
    own = isinstance(error, UpstreamLostError)
    return output.sanitize(redact_about(id, error.message) if own else error.message)
