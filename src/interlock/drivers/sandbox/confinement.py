"""A server that the node starts, kept from every network but the hosts that it may reach.

`Confinement` changes a command so that it is run confined (`launcher.py` does that, from a plan),
and is the other end of its ways out. It fails closed: where the machine cannot confine, opening one
is refused, and a command whose confinement fails half-way never runs.
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
    reachable,
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

_LONGEST_SOCKET_PATH: Final = 100
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "WS_PROXY", "WSS_PROXY")
_NO_PROXY: Final = "NO_PROXY"
_GONE: Final = frozenset(("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK"))
"""What names places that a confined server does not have."""


def confinement_error(key: str, problem: str) -> InterlockError:
    """A server cannot be confined as its driver says, so it is not started."""
    return InterlockError(
        SANDBOX_UNAVAILABLE,
        f"{key} is not started, because its network cannot be confined here: {problem}. "
        "An operator who trusts it can set drivers.sandbox: advisory.",
    )


class Confinement:
    """The confinement of one server, for as many starts of it as there are."""

    def __init__(
        self,
        key: str,
        egress: Egress,
        ways: EgressRoutes,
        room: Path,
        *,
        covered: Sequence[Path] = (),
    ) -> None:
        self._key = key
        self._covered = covered
        self._egress = egress
        self._ways = ways
        self._room = room
        self._plan = ""
        self._door: ListenerHandover | None = None
        self.covers: CoveredPaths | None = None
        """What was covered when the server was last started."""

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
        on_refused: EgressRefusalRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        problem: Callable[[], str | None] = confinement_problem,
    ) -> Self:
        """Get ready to start the server `key`.

        `hidden` it shall not see (the node's state), `read_only` not change (whatever says what it
        may do). What of them is not there when it is started is made, an empty folder: otherwise
        the server could make it. `local_egress`: other programs of this machine may be named, but
        `never` says where the node itself listens. `on_refused` hears of places that it asked for
        in vain. Raises InterlockError when it cannot be confined here, or `egress` is not one.
        """
        try:
            compiled = Egress.compile(egress, any_egress=any_egress, local_egress=local_egress)
            ways = EgressRoutes.to(compiled)
        except ValueError as exc:
            raise InterlockError(CONFIG, f"{key}: {exc}.") from None
        # In a thread: the first look takes a moment, and others are served meanwhile.
        trouble = await asyncio.to_thread(problem)
        if trouble is not None:
            raise confinement_error(key, trouble)
        room = Path(tempfile.mkdtemp(prefix="interlock-", dir=_folder_for_sockets()))
        one = cls(key, compiled, ways, room, covered=(*hidden, *read_only))
        reach = reachable(resolve, never=never, local=local_egress)
        refusals = EgressDenialLog(on_refused, clock=clock)
        try:
            if not (compiled.nothing or compiled.everything):
                one._door = ListenerHandover(
                    room / "door",
                    ways.listen,
                    lambda: Proxy(key, compiled, ways, resolve=reach, refused=refusals.note),
                )
            one._plan = encode_plan(
                room,
                compiled,
                ways,
                door=None if one._door is None else room / "door",
                hidden=hidden,
                read_only=read_only,
            )
        except (OSError, ValueError) as exc:
            await one.close()
            raise confinement_error(key, str(exc)) from None
        return one

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` confined.

        It has to be started by this process, with `environment`, by a thread that lives on (the
        event loop's): the server ends with whom it was started by. Signals go to its group.
        Raises InterlockError when something of the node's could be made by the server.
        """
        for place in self._covered:
            self._make_sure_of(place)
        # Before they are covered: what is replaced from now on is noticed.
        self.covers = CoveredPaths(self._covered)
        return command_line(self._key, argv)

    def _make_sure_of(self, place: Path) -> None:
        """That it is there: what is not there cannot be covered."""
        try:
            if not place.exists():
                Path(os.path.realpath(place)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            # Where this user may make nothing, its servers cannot either.
            if exc.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                problem = f"{place} is not there and cannot be made ({exc.strerror})"
                raise confinement_error(self._key, problem) from None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What to start it with, so that `env`, with the way out added, is the server's.

        The names are in disguise until then: what loads programs, and Python, heed many of them,
        and a driver's author must not have a say before the server is confined.
        """
        given = {**self._without_proxies(env), **self._proxies()}
        disguised = {PLAN: self._plan}
        disguised.update((ENVIRONMENT_PREFIX + name, value) for name, value in given.items())
        if "LD_LIBRARY_PATH" in os.environ:
            # The node's own: its Python may need it to start at all.
            disguised["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        return disguised

    def _without_proxies(self, env: Mapping[str, str]) -> dict[str, str]:
        if self._egress.everything:
            return {name: value for name, value in env.items() if name not in _GONE}
        dropped = {*_PROXIES, _NO_PROXY}
        return {
            name: value
            for name, value in env.items()
            if name not in _GONE and name.upper() not in dropped
        }

    def _proxies(self) -> dict[str, str]:
        if self._door is None:
            return {}
        address = f"http://{LOOPBACK}:{self._ways.proxy_port}"
        pairs = [(name, address) for name in _PROXIES[:3]]
        pairs.append((_NO_PROXY, f"localhost,{LOOPBACK},{LOOPBACK6}"))
        both = [(name.lower(), value) for name, value in pairs]
        # Node.js looks at the others only when this is set.
        return dict([*pairs, *both, ("NODE_USE_ENV_PROXY", "1")])

    async def close(self) -> None:
        """No more ways out. The server itself ends with its link."""
        if self._door is not None:
            await self._door.close()
        shutil.rmtree(self._room, ignore_errors=True)


def _folder_for_sockets() -> str | None:
    """Where temporary folders are, unless a socket's path there would be too long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < _LONGEST_SOCKET_PATH - 30 else "/tmp"


# -- Whether what a confined server was kept from is still what it is kept from.
#
# A cover lies on a file or folder, not on its name. Whoever replaces one from outside (many editors
# save that way) takes the cover with the old one, and what stands there now is a running server's
# to change. Nobody can prevent that, so it is looked for: whoever finds it ends the server.

_Identity = tuple[int, int]


class CoveredPaths:
    """Covered places as they were when a server was started."""

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = frozenset(places)
        names = {name for place in self.places for name in _on_the_way(place)}
        self._marks = {name: mark for name in names if (mark := _identity(name)) is not None}

    def lost(self) -> str:
        """A place at which something else stands now. Empty: there is none."""
        return next((name for name, mark in self._marks.items() if _identity(name) != mark), "")


def _on_the_way(place: Path) -> Iterable[str]:
    """Everything on the way to it, by its name and by its real one: each is held in its place."""
    for path in {os.path.join(os.getcwd(), place), os.path.realpath(place)}:
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            yield "/".join(parts[:end])


def _identity(name: str) -> _Identity | None:
    try:
        found = os.lstat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- What a confined server was refused, told once and not a thousand times.
#
# A server that is refused tries again, often at once and for ever. Whoever keeps the journal wants
# to know that it tried, where to, and no more. No `Sampler`: a new place is always told, up to so
# many places, and nothing is counted.

AGAIN: Final = 60.0
"""Seconds after which the same place is told once more."""
MOST: Final = 20
"""Places told within that time. A server that scans a network fills no journal."""

EgressRefusalRecorder = Callable[[str, int], None]


class EgressDenialLog:
    """Tells each place once in a while."""

    def __init__(
        self,
        tell: EgressRefusalRecorder | None,
        *,
        clock: Callable[[], float],
        again: float = AGAIN,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._again = again
        self._told: dict[HostPort, float] = {}
        """When each was told last; the oldest first."""

    def note(self, host: str, port: int) -> None:
        """A connection to this place was refused."""
        if self._tell is None:
            return
        now = self._clock()
        while self._told:
            oldest = next(iter(self._told))
            if now - self._told[oldest] < self._again:
                break
            del self._told[oldest]
        place = HostPort(host, port)
        if place in self._told or len(self._told) >= MOST:
            return
        self._told[place] = now
        self._tell(host, port)
