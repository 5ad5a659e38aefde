"""Whether one user is signed in with one driver, in one workspace: found out, kept, refreshed.

A driver without `auth` always is. One that only lists secrets is, as soon as all of them have a
value. Of one with a login it is kept who is signed in, so that a restart changes nothing; another
process, such as the command line, may sign somebody in meanwhile, which is noticed here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from interlock.drivers.health import ProbeClient, ProbeError
from interlock.drivers.processes import CommandRunner
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests.model import Auth, DriverManifest, HttpProbe

# -- Whether somebody is signed in with a driver, as a table: what can happen, and what follows.
#
# Five states are known while a node runs; of them `unauthed` and `authed` are kept
# (`DriverSignIn` below does what this table says).


class SignInState(Enum):
    UNKNOWN = "unknown"
    """Nobody has looked yet."""
    UNAUTHED = "unauthed"
    LOGGING_IN = "logging_in"
    """A human is at it: calls wait."""
    AUTHED = "authed"
    EXPIRED = "expired"
    """The driver was refused. If the sign-in can be refreshed that is tried, once."""


class SignInEvent(Enum):
    READY = "its version or health was checked, and is good"
    RESTORED = "kept from an earlier run"
    KEYS_FOUND = "every secret that it lists has a value"
    KEYS_MISSING = "a secret that it lists has no value"
    LOGIN = "somebody signs in"
    COMPLETED = "the login is complete"
    FAILED = "the login failed, or was given up"
    REFRESHED = "refreshed"
    NOT_REFRESHED = "the refresh failed, or there is none"
    REFUSED = "a sign of expiry was seen"
    SIGNED_OUT = "somebody signed out"


class SignInTransition(NamedTuple):
    """A cell of the table."""

    state: SignInState
    on: SignInEvent
    then: SignInState


_S, _E = SignInState, SignInEvent

TABLE: Final = (
    SignInTransition(_S.UNKNOWN, _E.READY, _S.UNAUTHED),
    SignInTransition(_S.UNKNOWN, _E.RESTORED, _S.AUTHED),
    SignInTransition(_S.UNKNOWN, _E.KEYS_FOUND, _S.AUTHED),
    SignInTransition(_S.UNKNOWN, _E.KEYS_MISSING, _S.UNAUTHED),
    SignInTransition(_S.UNKNOWN, _E.LOGIN, _S.LOGGING_IN),
    SignInTransition(_S.UNKNOWN, _E.SIGNED_OUT, _S.UNAUTHED),
    SignInTransition(_S.UNAUTHED, _E.READY, _S.UNAUTHED),
    SignInTransition(_S.UNAUTHED, _E.RESTORED, _S.AUTHED),
    SignInTransition(_S.UNAUTHED, _E.KEYS_FOUND, _S.AUTHED),
    SignInTransition(_S.UNAUTHED, _E.KEYS_MISSING, _S.UNAUTHED),
    SignInTransition(_S.UNAUTHED, _E.LOGIN, _S.LOGGING_IN),
    SignInTransition(_S.UNAUTHED, _E.REFUSED, _S.UNAUTHED),
    SignInTransition(_S.UNAUTHED, _E.SIGNED_OUT, _S.UNAUTHED),
    SignInTransition(_S.LOGGING_IN, _E.COMPLETED, _S.AUTHED),
    SignInTransition(_S.LOGGING_IN, _E.FAILED, _S.UNAUTHED),
    # What was refused was the sign-in before this one.
    SignInTransition(_S.LOGGING_IN, _E.REFUSED, _S.LOGGING_IN),
    SignInTransition(_S.AUTHED, _E.READY, _S.AUTHED),
    SignInTransition(_S.AUTHED, _E.RESTORED, _S.AUTHED),
    SignInTransition(_S.AUTHED, _E.KEYS_FOUND, _S.AUTHED),
    SignInTransition(_S.AUTHED, _E.KEYS_MISSING, _S.UNAUTHED),
    SignInTransition(_S.AUTHED, _E.LOGIN, _S.LOGGING_IN),
    SignInTransition(_S.AUTHED, _E.REFRESHED, _S.AUTHED),
    SignInTransition(_S.AUTHED, _E.NOT_REFRESHED, _S.EXPIRED),
    SignInTransition(_S.AUTHED, _E.REFUSED, _S.EXPIRED),
    SignInTransition(_S.AUTHED, _E.SIGNED_OUT, _S.UNAUTHED),
    SignInTransition(_S.EXPIRED, _E.RESTORED, _S.AUTHED),
    SignInTransition(_S.EXPIRED, _E.KEYS_FOUND, _S.AUTHED),
    SignInTransition(_S.EXPIRED, _E.KEYS_MISSING, _S.UNAUTHED),
    SignInTransition(_S.EXPIRED, _E.LOGIN, _S.LOGGING_IN),
    SignInTransition(_S.EXPIRED, _E.REFRESHED, _S.AUTHED),
    SignInTransition(_S.EXPIRED, _E.NOT_REFRESHED, _S.UNAUTHED),
    SignInTransition(_S.EXPIRED, _E.REFUSED, _S.EXPIRED),
    SignInTransition(_S.EXPIRED, _E.SIGNED_OUT, _S.UNAUTHED),
)
_THEN: Final = {(row.state, row.on): row.then for row in TABLE}


def after(state: SignInState, event: SignInEvent) -> SignInState | None:
    """The state that follows; None when this cannot happen there."""
    return _THEN.get((state, event))


# -- How a sign-in is kept fresh: by a command, by a request, or by the driver's own code.

REFRESH_TIMEOUT_SECONDS: Final = 60.0
"""How long a refresh may take."""

RefreshHook = Callable[[], Awaitable[None]]
"""`refresh` of driver.py. Whatever it raises, the sign-in is not fresh."""
Refresher = Callable[[], Awaitable[None]]
"""Refreshes a sign-in. Raises RefreshError."""


class RefreshError(Exception):
    """Why not, as the rest of a sentence."""

    def __init__(self, why: str, *, passing: bool) -> None:
        super().__init__(why)
        self.reason = why
        self.is_temporary = passing
        """Whether it may work in a moment: nobody answered, or not in time."""


def create_refresher(
    manifest: DriverManifest,
    *,
    run: CommandRunner,
    ask: ProbeClient,
    env: Mapping[str, str],
    hook: RefreshHook | None,
    warn: Callable[[str], None],
) -> Refresher | None:
    """What refreshes the sign-in of a driver; None when nothing does."""
    refresh = None if manifest.auth is None else manifest.auth.refresh
    if refresh is None:
        return None

    async def by_command() -> None:
        try:
            ran = await run(
                refresh.cmd, env=env, cwd=str(manifest.folder), timeout=REFRESH_TIMEOUT_SECONDS
            )
        except InterlockError as error:
            why = f"auth.refresh.cmd: {error.message.rstrip('.')}"
            raise RefreshError(why, is_temporary=True) from None
        if not ran.exited_with(0):
            raise RefreshError(f"auth.refresh.cmd: {ran.ending}", is_temporary=ran.timed_out)

    async def by_request() -> None:
        try:
            status = await ask(
                HttpProbe(refresh.url, method="POST"), timeout=REFRESH_TIMEOUT_SECONDS
            )
        except ProbeError as why:
            raise RefreshError(f"auth.refresh.url: {why}", is_temporary=True) from None
        if not 200 <= status < 300:
            passing = status >= 500 or status == 429
            raise RefreshError(f"auth.refresh.url: it answered HTTP {status}", is_temporary=passing)

    async def by_hook() -> None:
        assert hook is not None
        try:
            await hook()
        except Exception as error:
            # Foreign code: only the name of what it raised can hold no secret.
            data = error.data if isinstance(error, InterlockError) else None
            raised = (data or {}).get("raised", type(error).__name__)
            why = f"refresh of driver.py: it raised {raised}"
            raise RefreshError(why, is_temporary=False) from None

    if refresh.cmd:
        return by_command
    if refresh.url:
        return by_request
    if hook is not None:
        return by_hook
    warn(
        f"{manifest.id}: auth.refresh has neither a cmd nor a url, and driver.py has no refresh: "
        "its sign-in is never refreshed"
    )
    return None


# -- The signs by which a driver says that its sign-in has ended (`auth.expiry.detect`).
#
# `exit_code:N`, `http_status:N`, `exception:Name` and `header:NAME:VALUE`. A line with another
# prefix is for another host: it is warned of, and never matches.

PREFIXES: Final = ("exit_code", "http_status", "exception", "header")


class ExpirySign(NamedTuple):
    """One line of `detect`."""

    line: str
    prefix: str
    value: str
    """Of a header what stands after its name."""
    header: str = ""
    """In lower case."""


class ExpirySigns:
    """What a driver listed."""

    def __init__(self, detect: Iterable[str], *, warn: Callable[[str], None]) -> None:
        self.known: list[ExpirySign] = []
        for line in detect:
            sign = _read(line)
            if sign is None:
                warn(
                    f"auth.expiry.detect: {line!r} is not understood here, and never matches; "
                    "write exit_code:N, http_status:N, exception:Name or header:NAME:VALUE"
                )
            else:
                self.known.append(sign)

    def find(
        self,
        *,
        exit_code: int | None = None,
        http_status: int | None = None,
        exception: BaseException | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> str | None:
        """The first line that fits what a driver did; None: the sign-in is not to blame."""
        said = {name.lower(): value.strip() for name, value in (headers or {}).items()}
        names = _names(exception)
        for sign in self.known:
            match sign.prefix:
                case "exit_code":
                    fits = exit_code is not None and sign.value == str(exit_code)
                case "http_status":
                    fits = http_status is not None and sign.value == str(http_status)
                case "exception":
                    fits = sign.value in names
                case _:
                    fits = said.get(sign.header) == sign.value
            if fits:
                return sign.line
        return None


def _read(line: str) -> ExpirySign | None:
    prefix, colon, value = line.partition(":")
    if not colon or prefix not in PREFIXES:
        return None
    value = value.strip()
    if prefix in ("exit_code", "http_status"):
        # Written as it is compared: `+401` and `0401` are no numbers here.
        return ExpirySign(line, prefix, value) if _is_number(value) else None
    if prefix == "exception":
        return ExpirySign(line, prefix, value) if value else None
    header, colon, value = value.partition(":")
    if not colon or not header.strip():
        return None
    return ExpirySign(line, prefix, value.strip(), header.strip().lower())


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text


def _names(exception: BaseException | str) -> frozenset[str]:
    if isinstance(exception, str):
        return frozenset({exception} if exception else ())
    return frozenset(base.__name__ for base in type(exception).__mro__)


CHECK_SECONDS: Final = 1.0
"""How often it is looked whether another process changed something."""
SECRETS_RETRY_SECONDS: Final = 60.0
"""Secrets that were refused may have been replaced after this time."""
REFRESH_RETRY_SECONDS: Final = 30.0
LOGIN_COMMAND: Final = "interlock drivers login"

_log = logging.getLogger("interlock.drivers")


class SignInStore(Protocol):
    """Where it is kept who is signed in. Every call may block."""

    def state(self, driver: str, workspace: str, user: str) -> tuple[bool, float] | None:
        """Whether somebody is signed in, and since when that is fresh."""
        ...

    def save(
        self, driver: str, workspace: str, user: str, *, authed: bool, refreshed_at: float
    ) -> None: ...


async def _no_missing_secrets() -> Sequence[str]:
    return ()


class DriverSignIn:
    """The state of one (driver, workspace, user)."""

    def __init__(
        self,
        manifest: DriverManifest,
        *,
        workspace: str,
        user: str,
        store: SignInStore,
        missing: Callable[[], Awaitable[Sequence[str]]] = _no_missing_secrets,
        refresh: Refresher | None = None,
        now: Callable[[], float] = time.time,
        warn: Callable[[str], None] = _log.warning,
        on_change: Callable[[DriverSignIn], None] | None = None,
    ) -> None:
        """`missing`: which of `auth.state.env` have no value (`vault.unresolved`).
        `now` is on the wall clock: it is compared with what earlier runs kept."""
        self.manifest = manifest
        self.user = user
        self.refreshed_at = 0.0
        self.reason = ""
        """Why it is as it is, as the rest of a sentence; empty when there is nothing to say."""
        auth = manifest.auth or Auth()
        self._auth = auth
        self._key = (manifest.id, workspace, user)
        self._store = store
        self._missing = missing
        self._refresh = refresh
        self._unset: list[str] = []
        """Secrets that had no value when it was last looked."""
        self._now = now
        self._warn = warn
        self._on_change = on_change
        self._signs = ExpirySigns(auth.expiry_detect, warn=warn)
        self._lock = asyncio.Lock()
        """Held by who looks, refreshes or signs in: whoever calls meanwhile waits."""
        self._looked_at = float("-inf")
        self._refused_at = float("-inf")
        self._tried_at = float("-inf")
        self.needs_no_sign_in = not (auth.login or auth.state_env or auth.state_paths)
        self.state = SignInState.AUTHED if self.needs_no_sign_in else SignInState.UNKNOWN

    def __repr__(self) -> str:
        return f"DriverSignIn({self.manifest.id}, {self.user!r}, {self.state.value})"

    @property
    def authed(self) -> bool:
        """As far as is known; `ready` finds out."""
        return self.state is SignInState.AUTHED

    @property
    def instruction(self) -> str:
        """Why nobody is signed in, and what mends that: the same sentence wherever it is told.
        Empty: nothing is to be done."""
        if self.state is SignInState.AUTHED:
            return ""
        driver = self.manifest.id
        why = f": {self.reason}" if self.reason else ""
        return f"{driver} is not signed in{why}. {self._how()}"

    def _how(self) -> str:
        if self._auth.login is not None:
            return f"Run `{LOGIN_COMMAND} {self.manifest.id}`, and call again."
        if not self._unset:
            return "Give it what it lists under auth, and call again."
        names = ", ".join(self._unset)
        # Not as YAML: a line that gives a secret a value is masked wherever it is shown.
        return (
            "Say in interlock.yaml where its secrets are: by slug under drivers.secrets, or, to "
            f"take {names} from the node's environment, in the list drivers.env_secrets. Then call "
            "again."
        )

    # -- what the runtime asks and tells

    async def ensure_ready(self) -> None:
        """Be signed in and fresh, or raise InterlockError with what to do. While somebody signs
        in, this waits."""
        if self.needs_no_sign_in or (self._settled() and not self._lock.locked()):
            return
        async with self._lock:
            await self._look()
            if self.state is SignInState.EXPIRED or (
                self.state is SignInState.AUTHED and self._is_due()
            ):
                await self._be_refreshed()
            if self.state is not SignInState.AUTHED:
                raise self._required()

    async def read_state(self) -> SignInState:
        """What it is now. Nothing is refreshed and nobody is asked."""
        if not self.needs_no_sign_in:
            async with self._lock:
                await self._look()
        return self.state

    def detect_expiry(
        self,
        *,
        exit_code: int | None = None,
        http_status: int | None = None,
        exception: BaseException | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Something that the driver did; whether it is a sign that the sign-in has ended."""
        line = self._signs.find(
            exit_code=exit_code, http_status=http_status, exception=exception, headers=headers
        )
        if line is None:
            return False
        self._refused_at = self._now()
        self._happened(SignInEvent.REFUSED, f"the driver was refused ({line})")
        return True

    async def sign_in(self, login: Callable[[], Awaitable[None]]) -> None:
        """Let a human sign in (`sign_in.sign_in`); calls wait until that is over. Raises what
        `login` raises."""
        async with self._lock:
            self._happened(SignInEvent.LOGIN)
            try:
                await login()
            except BaseException as error:
                why = error.message if isinstance(error, InterlockError) else "it was given up"
                self._happened(SignInEvent.FAILED, why)
                # Not in another thread: who is cancelled is not to wait, and not to forget it.
                self._store.save(*self._key, authed=False, refreshed_at=0.0)
                raise
            await self._is_fresh(SignInEvent.COMPLETED)

    async def sign_out(self) -> None:
        async with self._lock:
            self._happened(SignInEvent.SIGNED_OUT, "somebody signed out")
            await self._keep(authed=False)

    # -- finding out

    def _settled(self) -> bool:
        now = self._now()
        return (
            self.state is SignInState.AUTHED
            and 0 <= now - self._looked_at < CHECK_SECONDS
            and not self._is_due()
        )

    async def _look(self) -> None:
        """Make the state what the secrets, or the store, say."""
        if self._auth.login is None:
            await self._look_for_keys()
        else:
            await self._look_into_store()
        self._looked_at = self._now()

    async def _look_for_keys(self) -> None:
        if self.state is SignInState.EXPIRED and self._refresh is None:
            self._happened(SignInEvent.NOT_REFRESHED, self.reason)
        self._unset = list(await self._missing())
        absent = [*self._unset, *self._absent_paths()]
        if absent:
            self._happened(SignInEvent.KEYS_MISSING, f"it has no {', '.join(absent)}")
        elif self.state is not SignInState.EXPIRED and (
            self._now() - self._refused_at >= SECRETS_RETRY_SECONDS
            or self.state is SignInState.AUTHED
        ):
            self._happened(SignInEvent.KEYS_FOUND)

    def _absent_paths(self) -> list[str]:
        folder = self.manifest.folder
        return [
            path
            for path in self._auth.state_paths
            if not (folder / Path(path).expanduser()).exists()
        ]

    async def _look_into_store(self) -> None:
        kept = await asyncio.to_thread(self._store.state, *self._key)
        authed, refreshed_at = kept or (False, 0.0)
        if authed and (self.state is not SignInState.EXPIRED or refreshed_at > self.refreshed_at):
            self.refreshed_at = refreshed_at
            self._happened(SignInEvent.RESTORED)
        elif not authed and self.state is SignInState.UNKNOWN:
            self._happened(SignInEvent.READY)
        elif not authed and self.state in (SignInState.AUTHED, SignInState.EXPIRED):
            self._happened(SignInEvent.SIGNED_OUT, "somebody signed out")

    # -- refreshing

    def _is_due(self) -> bool:
        refresh = self._auth.refresh
        if self._refresh is None or refresh is None or refresh.every is None:
            return False
        now = self._now()
        return (
            now - self.refreshed_at >= refresh.every
            and now - self._tried_at >= REFRESH_RETRY_SECONDS
        )

    async def _be_refreshed(self) -> None:
        why = self.reason
        try:
            if self._refresh is None:
                raise RefreshError(why, is_temporary=False)
            self._tried_at = self._now()
            await self._refresh()
        except RefreshError as failed:
            if failed.is_temporary:
                # It may work at the next call. Whether one that was only due has ended, the
                # driver will say.
                self._warn(f"{self.manifest.id} could not be refreshed: {failed.reason}")
                return
            self._happened(SignInEvent.NOT_REFRESHED, failed.reason)
            if self.state is SignInState.EXPIRED:
                self._happened(SignInEvent.NOT_REFRESHED, failed.reason)
            await self._keep(authed=False)
        else:
            await self._is_fresh(SignInEvent.REFRESHED)

    async def _is_fresh(self, event: SignInEvent) -> None:
        self.refreshed_at = self._now()
        self._refused_at = float("-inf")
        self._happened(event)
        await self._keep(authed=True)
        self._looked_at = self._now()

    # -- the state

    async def _keep(self, *, authed: bool) -> None:
        if self._auth.login is not None:
            refreshed_at = self.refreshed_at if authed else 0.0
            keeping = asyncio.to_thread(
                self._store.save, *self._key, authed=authed, refreshed_at=refreshed_at
            )
            await asyncio.shield(keeping)

    def _happened(self, event: SignInEvent, why: str = "") -> None:
        then = after(self.state, event)
        if then is None:
            return
        before, self.state, self.reason = self.state, then, why
        if then is not before and self._on_change is not None:
            self._on_change(self)

    def _required(self) -> InterlockError:
        data: dict[str, Any] = {"driver": self.manifest.id, "state": self.state.value}
        if self._auth.login is not None:
            data["login"] = {
                name: value
                for name, value in msgspec.to_builtins(self._auth.login).items()
                if value
            }
        return InterlockError(AUTH_REQUIRED, self.instruction, data)
