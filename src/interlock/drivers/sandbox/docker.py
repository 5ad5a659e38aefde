"""The command that runs a driver's server as a container. Pure, so it can be shown on machines
without a container engine.

A container is not a child process of the node, so the engine has to confine it: without network, or
not at all. An engine cannot limit a container to certain hosts. Such a driver is rejected unless
confinement is advisory. The engine's client runs unconfined, because it must reach the engine. So
it is the node's own program with the node's own environment, and a driver cannot influence either.
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

# A name, with an optional registry, tag and digest. No option has this form.
_IMAGE: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_IMAGE_CHARACTERS: Final = 512
_RESERVED: Final = re.compile(
    # Variables that control where the client looks and what it loads: of the client, its libraries
    # and its runtime.
    r"PATH|HOME|USER|LOGNAME|PWD|SHELL|ENV|IFS|TMPDIR|TMP|TEMP|TZ|TZDIR|TERM|TERMINFO.*|LANG.*|LC_.*"
    r"|LD_.*|DYLD_.*|GLIBC_.*|MALLOC_.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|LOCALDOMAIN"
    r"|RES_OPTIONS|GODEBUG|GOTRACEBACK|GOMAXPROCS|GOGC|GOMEMLIMIT|BASH.*|SHELLOPTS|PS4|PYTHON.*|PERL.*|NODE_OPTIONS|RUBY.*"
    # Variables that control which hosts it contacts and trusts.
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
    """Return the `docker run` command of an image.

    Args:
        env_names: variables of the container. Their values must be in the environment of the
            command, because other users can read command lines.
        egress: the allowed network.
        advisory: run without confinement if the engine cannot confine the container.

    Raises:
        InterlockError: the engine cannot confine the container.
    """
    if not is_image(image):
        raise InterlockError(CONFIG, f"{key}: {image[:80]!r} is not a valid image name.")
    problem = env_problem(env_names)
    if problem:
        raise InterlockError(CONFIG, f"{key}: {problem}")
    command = [_CLIENT, "run", "-i", "--rm"]
    if egress.is_empty and port is None:
        command += ["--network", "none"]
    elif not egress.everything and not advisory:
        raise confinement_error(
            key,
            "a container engine cannot limit a container to certain hosts"
            if not egress.is_empty
            else f"a container without network cannot be reached at port {port}",
        )
    if port is not None:
        command += ["-p", f"127.0.0.1:{port}:{port}"]
    for name in env_names:
        command += ["-e", name]
    return [*command, image, *args]


def is_image(name: str) -> bool:
    """Return whether a text is an image name that the client cannot take for anything else."""
    return len(name) <= _MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(name) is not None


def env_problem(names: Iterable[str]) -> str:
    """Return why a container cannot get variables of these names, as a sentence. Empty: it can.

    The values are passed in the environment of the engine's client, so a variable must not
    influence the client or its libraries.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name):
            # The name is not shown: a wrong NAME=value entry may contain a secret.
            return "server.env contains an invalid variable name."
        if _RESERVED.fullmatch(name):
            return (
                f"server.env contains {name}, which the client of the container engine reads "
                "itself, "
                "so it cannot be passed to a container. Use another name, or set it in the image."
            )
    return ""


def find_client(environ: Mapping[str, str], *, key: str = "The driver") -> str:
    """Return the path of the engine's client, by the node's own PATH. Raises InterlockError."""
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        # Relative entries are skipped: the working folder may be an untrusted workspace.
        program = shutil.which(_CLIENT, path=folder) if os.path.isabs(folder) else None
        if program is not None:
            return program
    raise InterlockError(
        TOOL_UNAVAILABLE,
        f"{key}: its server is a container, but {_CLIENT} is not on the node's PATH. Install it.",
    )
