"""The confinement of a server that the node starts: it reaches only the allowed hosts.

`Confinement` changes a command so that it runs confined (`launcher.py` does this, from a plan) and
provides the network access. It fails closed: if the machine cannot confine, opening is rejected,
and a command whose confinement fails never runs.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from interlock.drivers.sandbox.listener_handover import ListenerHandover
from interlock.drivers.sandbox.name_resolution import (
    HostResolver,
    OwnAddresses,
    reachable_resolver,
    resolve_outside,
)
from interlock.drivers.sandbox.patterns import Egress, HostPort
from interlock.drivers.sandbox.plan import (
    ENVIRONMENT_PREFIX,
    LOOPBACK,
    LOOPBACK6,
    PLAN,
    EgressRoutes,
    command_line,
    encode_plan,
)
from interlock.drivers.sandbox.proxy import Proxy
from interlock.drivers.sandbox.self_test import confinement_problem
from interlock.errors import CONFIG, SANDBOX_UNAVAILABLE, InterlockError

_MAX_SOCKET_PATH: Final = 100
_PROXY_VARIABLES: Final = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "FTP_PROXY",
    "WS_PROXY",
    "WSS_PROXY",
)
_NO_PROXY_VARIABLE: Final = "NO_PROXY"
_REMOVED_VARIABLES: Final = frozenset(
    ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK")
)
"""Variables that name paths which a confined server cannot see."""


def confinement_error(key: str, problem: str) -> InterlockError:
    """Return the error for a server that cannot be confined as its driver declares. It is not
    started."""
    return InterlockError(
        SANDBOX_UNAVAILABLE,
        f"{key} is not started, because its network cannot be confined on this machine: "
        f"{problem}. To run it without confinement, set drivers.sandbox: advisory.",
    )


class Confinement:
    """The confinement of one server, for all of its starts."""

    def __init__(
        self,
        key: str,
        egress: Egress,
        routes: EgressRoutes,
        folder: Path,
        *,
        covered: Sequence[Path] = (),
    ) -> None:
        self._key = key
        self._covered = covered
        self._egress = egress
        self._routes = routes
        self._folder = folder
        self._plan = ""
        self._handover: ListenerHandover | None = None
        self.covers: CoveredPaths | None = None
        """The covered paths at the last start of the server."""

    @classmethod
    async def open(
        cls,
        key: str,
        egress: Sequence[str],
        *,
        hidden: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        any_egress: bool = False,
        local_egress: bool = False,
        never: OwnAddresses = (),
        resolve: HostResolver = resolve_outside,
        on_denied: EgressRefusalRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        problem: Callable[[], str | None] = confinement_problem,
    ) -> Self:
        """Open a confinement for the server `key`.

        Args:
            egress: the patterns of the driver's `network.egress`.
            hidden: paths that the server cannot see, such as the node's state.
            read_only: paths that the server cannot change, such as files that define its
                permissions. Missing paths are created as empty folders at the start, because the
                server could create them otherwise.
            any_egress: the operator allows the whole network.
            local_egress: the operator allows other programs of this machine.
            never: addresses of the node, which are never reachable.
            on_denied: called with each denied host and port.

        Raises:
            InterlockError: the server cannot be confined on this machine, or `egress` is invalid.
        """
        try:
            compiled = Egress.compile(egress, any_egress=any_egress, local_egress=local_egress)
            routes = EgressRoutes.to(compiled)
        except ValueError as exc:
            raise InterlockError(CONFIG, f"{key}: {exc}.") from None
        # In a thread: the first self-test takes a moment.
        self_test_problem = await asyncio.to_thread(problem)
        if self_test_problem is not None:
            raise confinement_error(key, self_test_problem)
        folder = Path(tempfile.mkdtemp(prefix="interlock-", dir=_folder_for_sockets()))
        confinement = cls(key, compiled, routes, folder, covered=(*hidden, *read_only))
        resolver = reachable_resolver(resolve, never=never, local=local_egress)
        denials = EgressDenialReporter(on_denied, clock=clock)
        try:
            if not (compiled.is_empty or compiled.everything):
                confinement._handover = ListenerHandover(
                    folder / "socket",
                    routes.listen,
                    lambda: Proxy(key, compiled, routes, resolve=resolver, on_denied=denials.note),
                )
            confinement._plan = encode_plan(
                folder,
                compiled,
                routes,
                listener_path=None if confinement._handover is None else folder / "socket",
                hidden=hidden,
                read_only=read_only,
            )
        except (OSError, ValueError) as exc:
            await confinement.close()
            raise confinement_error(key, str(exc)) from None
        return confinement

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` confined.

        The command must be started by this process, with the variables of `environment`, in a
        thread that does not exit (the event loop's): the server ends with the thread that started
        it. Signals must go to its process group. Raises InterlockError if a path cannot be covered.
        """
        for path in self._covered:
            self._ensure_exists(path)
        # Recorded before they are covered, so that every later replacement is noticed.
        self.covers = CoveredPaths(self._covered)
        return command_line(self._key, argv)

    def _ensure_exists(self, path: Path) -> None:
        """Create a missing path: only existing paths can be covered."""
        try:
            if not path.exists():
                Path(os.path.realpath(path)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            # If this user cannot create the path, its servers cannot either.
            if exc.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                problem = f"{path} does not exist and cannot be created ({exc.strerror})"
                raise confinement_error(self._key, problem) from None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command, so that the server gets `env` and the proxy
        variables.

        Names have a prefix until the server starts. The dynamic loader and Python read many
        variables, and a driver's author must not influence the process before it is confined.
        """
        variables = {**self._without_proxies(env), **self._proxies()}
        prefixed = {PLAN: self._plan}
        prefixed.update((ENVIRONMENT_PREFIX + name, value) for name, value in variables.items())
        if "LD_LIBRARY_PATH" in os.environ:
            # The node's own value: its Python may need it to start.
            prefixed["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        return prefixed

    def _without_proxies(self, env: Mapping[str, str]) -> dict[str, str]:
        if self._egress.everything:
            return {name: value for name, value in env.items() if name not in _REMOVED_VARIABLES}
        dropped = {*_PROXY_VARIABLES, _NO_PROXY_VARIABLE}
        return {
            name: value
            for name, value in env.items()
            if name not in _REMOVED_VARIABLES and name.upper() not in dropped
        }

    def _proxies(self) -> dict[str, str]:
        if self._handover is None:
            return {}
        address = f"http://{LOOPBACK}:{self._routes.proxy_port}"
        pairs = [(name, address) for name in _PROXY_VARIABLES[:3]]
        pairs.append((_NO_PROXY_VARIABLE, f"localhost,{LOOPBACK},{LOOPBACK6}"))
        lower_case = [(name.lower(), value) for name, value in pairs]
        # Node.js reads the proxy variables only if this is set.
        return dict([*pairs, *lower_case, ("NODE_USE_ENV_PROXY", "1")])

    async def close(self) -> None:
        """Close the network access and delete the private folder. The server ends with its own
        connection."""
        if self._handover is not None:
            await self._handover.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _folder_for_sockets() -> str | None:
    """Return the parent of temporary folders, or /tmp if a socket path there would be too long."""
    default = tempfile.gettempdir()
    return default if len(os.fsencode(default)) < _MAX_SOCKET_PATH - 30 else "/tmp"


# -- Monitoring of covered paths.
#
# A cover belongs to a file or folder, not to its name. If a path is replaced from outside (many
# editors save this way), the cover moves with the old file, and a running server can access the new
# one. This cannot be prevented, so it is detected, and the server is stopped.

_FileIdentity = tuple[int, int]


class CoveredPaths:
    """The covered paths as they were when a server started."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = frozenset(paths)
        names = {name for path in self.paths for name in _parent_paths(path)}
        self._identities = {
            name: mark for name in names if (mark := _file_identity(name)) is not None
        }

    def find_replaced(self) -> str:
        """Return a path that was replaced. Empty: there is none."""
        return next(
            (name for name, mark in self._identities.items() if _file_identity(name) != mark), ""
        )


def _parent_paths(path: Path) -> Iterable[str]:
    """Yield all parents of a path and the path, by its name and by its real name: each one is
    pinned."""
    for full_path in {os.path.join(os.getcwd(), path), os.path.realpath(path)}:
        parts = full_path.split("/")
        for end in range(2, len(parts) + 1):
            yield "/".join(parts[:end])


def _file_identity(name: str) -> _FileIdentity | None:
    try:
        status = os.lstat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# -- Denied connections of a confined server, reported with a rate limit.
#
# A server that is denied often retries at once and without a limit. The journal needs the attempt
# and its target once. `Sampler` does not fit: a new place is always reported, up to a limit, and
# nothing is counted.

REPORT_INTERVAL_SECONDS: Final = 60.0
"""Interval after which the same place is reported again."""
MAX_REPORTED_PLACES: Final = 20
"""Maximum places reported in that time, so that a network scan does not fill the journal."""

EgressRefusalRecorder = Callable[[str, int], None]


class EgressDenialReporter:
    """A reporter of denied connections. It reports each place at most once per interval."""

    def __init__(
        self,
        report: EgressRefusalRecorder | None,
        *,
        clock: Callable[[], float],
        interval: float = REPORT_INTERVAL_SECONDS,
    ) -> None:
        self._report = report
        self._clock = clock
        self._interval = interval
        self._reported_at: dict[HostPort, float] = {}
        """Time of the last report of each place, oldest first."""

    def note(self, host: str, port: int) -> None:
        """Report a denied connection."""
        if self._report is None:
            return
        now = self._clock()
        while self._reported_at:
            oldest = next(iter(self._reported_at))
            if now - self._reported_at[oldest] < self._interval:
                break
            del self._reported_at[oldest]
        address = HostPort(host, port)
        if address in self._reported_at or len(self._reported_at) >= MAX_REPORTED_PLACES:
            return
        self._reported_at[address] = now
        self._report(host, port)
