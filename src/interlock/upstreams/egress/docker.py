"""The command that runs a driver's server as a container. Pure: it is made here, and shown where
there is no engine.

What an engine starts is no child of the node, so the engine has to confine it: without a network,
or not at all. A choice of hosts it cannot confine to, and the driver is refused unless the operator
has said that confinement is only advice. The client that this command starts is not to be confined
itself: it has to reach its engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from interlock.errors import CONFIG, InterlockError
from interlock.upstreams.egress.confinement import unconfinable
from interlock.upstreams.egress.patterns import Egress

# A name, perhaps with a registry before it, a tag or a digest behind it. No option looks like it.
_IMAGE: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_IMAGE: Final = 512


def docker_argv(
    image: str,
    args: Sequence[str],
    env_names: Sequence[str],
    *,
    egress: Egress,
    port: int | None = None,
    advisory: bool = False,
    key: str = "The driver",
) -> list[str]:
    """`docker run` for an image. The values of `env_names` belong into the environment that it is
    started with: here they would be read by everybody on the machine. Raises InterlockError for
    what an engine cannot confine.
    """
    if len(image) > _LONGEST_IMAGE or not _IMAGE.fullmatch(image):
        raise InterlockError(CONFIG, f"{key}: {image[:80]!r} is no name of an image.")
    for name in env_names:
        if not _VARIABLE.fullmatch(name):
            # Not shown: who writes NAME=value there shows a secret.
            raise InterlockError(CONFIG, f"{key}: server.env has a name that no variable can have.")
    command = ["docker", "run", "-i", "--rm"]
    if egress.nothing and port is None:
        command += ["--network", "none"]
    elif not egress.everything and not advisory:
        raise unconfinable(
            key,
            "an engine gives a container the whole network or none, and no choice of hosts"
            if not egress.nothing
            else f"a container without a network is not reached at its port {port} either",
        )
    if port is not None:
        command += ["-p", f"127.0.0.1:{port}:{port}"]
    for name in env_names:
        command += ["-e", name]
    return [*command, image, *args]
