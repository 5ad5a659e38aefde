"""The command that runs a driver's server as a container. Pure: it is made here, and shown where
there is no engine.

What an engine starts is no child of the node, so the engine has to confine it: without a network,
or not at all. A choice of hosts it cannot confine to, and the driver is refused unless the operator
has said that confinement is only advice. The client that this command starts is not to be confined
itself: it has to reach its engine. So it is the node's own, with the node's own environment, and a
driver has no say in either.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from interlock.drivers.sandbox.confinement import confinement_error
from interlock.drivers.sandbox.patterns import Egress
from interlock.errors import CONFIG, TOOL_UNAVAILABLE, InterlockError

# A name, perhaps with a registry before it, a tag or a digest behind it. No option looks like it.
_IMAGE: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_IMAGE: Final = 512
_RESERVED: Final = re.compile(
    # Where the client looks, and what it loads: its own, its libraries' and its runtime's.
    r"PATH|HOME|USER|LOGNAME|PWD|SHELL|ENV|IFS|TMPDIR|TMP|TEMP|TZ|TZDIR|TERM|TERMINFO.*|LANG.*|LC_.*"
    r"|LD_.*|DYLD_.*|GLIBC_.*|MALLOC_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|LOCALDOMAIN"
    r"|RES_OPTIONS|GODEBUG|GOTRACEBACK|GOMAXPROCS|GOGC|GOMEMLIMIT|BASH.*|SHELLOPTS|PS4|PYTHON.*|PERL.*|NODE_OPTIONS|RUBY.*"
    # Whom it speaks to, and whom it believes.
    r"|DOCKER_.*|BUILDKIT_.*|BUILDX_.*|COMPOSE_.*|CONTAINERS?_.*|PODMAN_.*|STORAGE_DRIVER|STORAGE_OPTS|REGISTRY_AUTH.*"
    r"|XDG_.*|DBUS_.*|SSH_.*|SSL_.*|OPENSSL_.*|CURL_.*|OTEL_.*|(?:.*_)?PROXY",
    re.IGNORECASE,
)
_CLIENT: Final = "docker"


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
    if not is_image(image):
        raise InterlockError(CONFIG, f"{key}: {image[:80]!r} is no name of an image.")
    problem = env_problem(env_names)
    if problem:
        raise InterlockError(CONFIG, f"{key}: {problem}")
    command = [_CLIENT, "run", "-i", "--rm"]
    if egress.nothing and port is None:
        command += ["--network", "none"]
    elif not egress.everything and not advisory:
        raise confinement_error(
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


def is_image(name: str) -> bool:
    """Whether this names an image, and nothing else that a client could take it for."""
    return len(name) <= _LONGEST_IMAGE and _IMAGE.fullmatch(name) is not None


def env_problem(names: Iterable[str]) -> str:
    """Why a container cannot be given variables of these names, as a sentence. Empty: it can.

    Their values go through the environment of the engine's client, so none may be one that the
    client, or what it is made of, heeds itself.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name):
            # Not shown: who writes NAME=value there shows a secret.
            return "server.env has a name that no variable can have."
        if _RESERVED.fullmatch(name):
            return (
                f"server.env names {name}, which the client of the container engine heeds itself, "
                "so a container cannot be given it. Use another name, or set it in the image."
            )
    return ""


def client_of(environ: Mapping[str, str], *, key: str = "The driver") -> str:
    """The engine's client, by the node's own PATH. Raises InterlockError when it is not there."""
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        # Not relative to wherever the node happens to be: a workspace is a stranger's.
        found = shutil.which(_CLIENT, path=folder) if os.path.isabs(folder) else None
        if found is not None:
            return found
    raise InterlockError(
        TOOL_UNAVAILABLE,
        f"{key}: there is no {_CLIENT} on this node's PATH, and its server is a container.",
    )
