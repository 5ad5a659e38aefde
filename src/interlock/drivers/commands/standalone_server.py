"""Connection to the server of one driver from the command line, with printable error messages (see
`interlock.drivers.standalone`)."""

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
    """Start or connect to the server of a driver until the block ends. Entering it raises
    InterlockError.

    Args:
        inventory: secrets that are not in a file yet.
        may_install: install the server even if the config does not allow it.
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
    """Return a printable message for a failed connection. The server's own text is untrusted."""
    from_server = isinstance(error, UpstreamLostError)
    return output.sanitize(redact_about(id, error.message) if from_server else error.message)
