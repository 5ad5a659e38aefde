"""The sign-in state of one user with one driver in one workspace: read, stored and refreshed.

A driver without `auth` is always signed in. A driver that only lists secrets is signed in if all of
them have a value. For a driver with a login the state is stored, so that it survives a restart.
Another process, such as the command line, may change it, which is noticed here.
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

# -- State table of a sign-in.
#
# A running node knows five states. `unauthed` and `authed` are stored (`DriverSignIn` below
# implements this table).


class SignInState(Enum):
    UNKNOWN = "unknown"
    """The state was not read yet."""
    UNAUTHED = "unauthed"
    LOGGING_IN = "logging_in"
    """An operator is signing in. Calls wait."""
    AUTHED = "authed"
    EXPIRED = "expired"
    """The server rejected the credentials. One refresh is tried if the driver supports it."""


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
    SIGNED_OUT = "an operator signed out"


class SignInTransition(NamedTuple):
    """A row of the state table."""

    state: SignInState
    event: SignInEvent
    next_state: SignInState


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
    # The rejected sign-in was the one before this one.
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
_NEXT_STATES: Final = {(row.state, row.event): row.next_state for row in TABLE}


def next_state(state: SignInState, event: SignInEvent) -> SignInState | None:
    """Return the next state. None: the event has no effect in this state."""
    return _NEXT_STATES.get((state, event))


# -- Refresh of a sign-in: by a command, by a request, or by the driver's code.

REFRESH_TIMEOUT_SECONDS: Final = 60.0
"""Timeout of a refresh."""

RefreshHook = Callable[[], Awaitable[None]]
"""`refresh` of driver.py. Any exception means that the refresh failed."""
Refresher = Callable[[], Awaitable[None]]
"""Refreshes a sign-in. Raises RefreshError."""


class RefreshError(Exception):
    """The reason why a refresh failed, as the rest of a sentence."""

    def __init__(self, reason: str, *, is_temporary: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_temporary = is_temporary
        """True if a retry may succeed: there was no response, or not in time."""


def create_refresher(
    manifest: DriverManifest,
    *,
    run: CommandRunner,
    probe_client: ProbeClient,
    env: Mapping[str, str],
    hook: RefreshHook | None,
    warn: Callable[[str], None],
) -> Refresher | None:
    """Return the function that refreshes a driver's sign-in. None: the driver has no refresh."""
    refresh = None if manifest.auth is None else manifest.auth.refresh
    if refresh is None:
        return None

    async def by_command() -> None:
        try:
            result = await run(
                refresh.cmd, env=env, cwd=str(manifest.folder), timeout=REFRESH_TIMEOUT_SECONDS
            )
        except InterlockError as error:
            reason = f"auth.refresh.cmd: {error.message.rstrip('.')}"
            raise RefreshError(reason, is_temporary=True) from None
        if not result.exited_with(0):
            raise RefreshError(f"auth.refresh.cmd: {result.ending}", is_temporary=result.timed_out)

    async def by_request() -> None:
        try:
            status = await probe_client(
                HttpProbe(refresh.url, method="POST"), timeout=REFRESH_TIMEOUT_SECONDS
            )
        except ProbeError as reason:
            raise RefreshError(f"auth.refresh.url: {reason}", is_temporary=True) from None
        if not 200 <= status < 300:
            is_temporary = status >= 500 or status == 429
            raise RefreshError(
                f"auth.refresh.url: the response is HTTP {status}", is_temporary=is_temporary
            )

    async def by_hook() -> None:
        assert hook is not None
        try:
            await hook()
        except Exception as error:
            # Third-party code: the message may contain secrets, the exception's name does not.
            data = error.data if isinstance(error, InterlockError) else None
            raised = (data or {}).get("raised", type(error).__name__)
            reason = f"refresh of driver.py: it raised {raised}"
            raise RefreshError(reason, is_temporary=False) from None

    if refresh.cmd:
        return by_command
    if refresh.url:
        return by_request
    if hook is not None:
        return by_hook
    warn(
        f"{manifest.id}: the sign-in is never refreshed, because auth.refresh has no cmd and "
        "no url and driver.py has no refresh hook"
    )
    return None


# -- Signs that a sign-in has expired (`auth.expiry.detect`).
#
# `exit_code:N`, `http_status:N`, `exception:Name` and `header:NAME:VALUE`. A line with another
# prefix is for other hosts: it causes a warning and never matches.

PREFIXES: Final = ("exit_code", "http_status", "exception", "header")


class ExpirySign(NamedTuple):
    """A sign of an expired sign-in: one line of `auth.expiry.detect`."""

    line: str
    prefix: str
    value: str
    """The value after the prefix. For a header: the text after its name."""
    header: str = ""
    """In lower case."""


class ExpirySigns:
    """The expiry signs that a driver declares."""

    def __init__(self, detect: Iterable[str], *, warn: Callable[[str], None]) -> None:
        self.signs: list[ExpirySign] = []
        for line in detect:
            sign = _parse_sign(line)
            if sign is None:
                warn(
                    f"auth.expiry.detect: {line!r} is not supported and never matches. Use "
                    "exit_code:N, http_status:N, exception:Name or header:NAME:VALUE."
                )
            else:
                self.signs.append(sign)

    def find(
        self,
        *,
        exit_code: int | None = None,
        http_status: int | None = None,
        exception: BaseException | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> str | None:
        """Return the first line that matches what a driver did. None: no line matches."""
        header_values = {name.lower(): value.strip() for name, value in (headers or {}).items()}
        names = _names(exception)
        for sign in self.signs:
            match sign.prefix:
                case "exit_code":
                    is_match = exit_code is not None and sign.value == str(exit_code)
                case "http_status":
                    is_match = http_status is not None and sign.value == str(http_status)
                case "exception":
                    is_match = sign.value in names
                case _:
                    is_match = header_values.get(sign.header) == sign.value
            if is_match:
                return sign.line
        return None


def _parse_sign(line: str) -> ExpirySign | None:
    prefix, colon, value = line.partition(":")
    if not colon or prefix not in PREFIXES:
        return None
    value = value.strip()
    if prefix in ("exit_code", "http_status"):
        # The text is compared exactly, so `+401` and `0401` are not valid numbers.
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
"""Interval for checking whether another process changed the state."""
SECRETS_RETRY_SECONDS: Final = 60.0
"""Time after which rejected secrets may have been replaced."""
REFRESH_RETRY_SECONDS: Final = 30.0
LOGIN_COMMAND: Final = "interlock drivers login"

_log = logging.getLogger("interlock.drivers")


class SignInStore(Protocol):
    """The store of sign-in states. Every call may block."""

    def state(self, driver: str, workspace: str, user: str) -> tuple[bool, float] | None:
        """Return whether the user is signed in, and the time of the last refresh."""
        ...

    def save(
        self, driver: str, workspace: str, user: str, *, authed: bool, refreshed_at: float
    ) -> None: ...


async def _no_missing_secrets() -> Sequence[str]:
    return ()


class DriverSignIn:
    """The sign-in state of one (driver, workspace, user)."""

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
        """Args:
        missing: returns the names in `auth.state.env` that have no value (`vault.unresolved`).
        now: wall clock. It is compared with times that earlier runs stored.
        """
        self.manifest = manifest
        self.user = user
        self.refreshed_at = 0.0
        self.reason = ""
        """Reason of the state, as the rest of a sentence. May be empty."""
        auth = manifest.auth or Auth()
        self._auth = auth
        self._key = (manifest.id, workspace, user)
        self._store = store
        self._missing = missing
        self._refresh = refresh
        self._missing_secrets: list[str] = []
        """Secrets without a value at the last check."""
        self._now = now
        self._warn = warn
        self._on_change = on_change
        self._signs = ExpirySigns(auth.expiry_detect, warn=warn)
        self._lock = asyncio.Lock()
        """Held during a check, a refresh or a sign-in. Calls wait for it."""
        self._checked_at = float("-inf")
        self._rejected_at = float("-inf")
        self._refresh_tried_at = float("-inf")
        self.needs_no_sign_in = not (auth.login or auth.state_env or auth.state_paths)
        self.state = SignInState.AUTHED if self.needs_no_sign_in else SignInState.UNKNOWN

    def __repr__(self) -> str:
        return f"DriverSignIn({self.manifest.id}, {self.user!r}, {self.state.value})"

    @property
    def authed(self) -> bool:
        """True if signed in, by the last known state. `ensure_ready` checks it."""
        return self.state is SignInState.AUTHED

    @property
    def instruction(self) -> str:
        """Return why the user is not signed in and what to do. All commands use the same text.
        Empty: nothing is to be done."""
        if self.state is SignInState.AUTHED:
            return ""
        driver = self.manifest.id
        reason = f": {self.reason}" if self.reason else ""
        return f"{driver} is not signed in{reason}. {self._advice()}"

    def _advice(self) -> str:
        if self._auth.login is not None:
            return f"Run `{LOGIN_COMMAND} {self.manifest.id}`, then repeat the call."
        if not self._missing_secrets:
            return "Provide the files that its DRIVER.md lists under auth, then repeat the call."
        names = ", ".join(self._missing_secrets)
        # Not as YAML: output masks lines that assign a value to a secret.
        return (
            "Set its secrets in interlock.yaml: by slug under drivers.secrets, or, to take "
            f"{names} from the node's environment, in the list drivers.env_secrets. Then repeat "
            "the call."
        )

    # -- interface of the runtime

    async def ensure_ready(self) -> None:
        """Ensure that the user is signed in and the sign-in is fresh. Waits while an operator signs
        in. Raises InterlockError with what to do."""
        if self.needs_no_sign_in or (self._is_current() and not self._lock.locked()):
            return
        async with self._lock:
            await self._update_state()
            if self.state is SignInState.EXPIRED or (
                self.state is SignInState.AUTHED and self._is_due()
            ):
                await self._refresh_sign_in()
            if self.state is not SignInState.AUTHED:
                raise self._required()

    async def read_state(self) -> SignInState:
        """Read the current state. Nothing is refreshed and no operator is involved."""
        if not self.needs_no_sign_in:
            async with self._lock:
                await self._update_state()
        return self.state

    def detect_expiry(
        self,
        *,
        exit_code: int | None = None,
        http_status: int | None = None,
        exception: BaseException | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Check whether something that the driver did means that the sign-in has expired, and
        record it."""
        line = self._signs.find(
            exit_code=exit_code, http_status=http_status, exception=exception, headers=headers
        )
        if line is None:
            return False
        self._rejected_at = self._now()
        self._apply_event(SignInEvent.REFUSED, f"the server rejected the credentials ({line})")
        return True

    async def sign_in(self, login: Callable[[], Awaitable[None]]) -> None:
        """Let an operator sign in (`sign_in.sign_in`). Calls wait until it is over. Raises what
        `login` raises."""
        async with self._lock:
            self._apply_event(SignInEvent.LOGIN)
            try:
                await login()
            except BaseException as error:
                reason = (
                    error.message
                    if isinstance(error, InterlockError)
                    else "the sign-in was cancelled"
                )
                self._apply_event(SignInEvent.FAILED, reason)
                # Not in another thread: a cancelled task must not wait, and the state must be
                # stored.
                self._store.save(*self._key, authed=False, refreshed_at=0.0)
                raise
            await self._mark_fresh(SignInEvent.COMPLETED)

    async def sign_out(self) -> None:
        async with self._lock:
            self._apply_event(SignInEvent.SIGNED_OUT, "an operator signed out")
            await self._save(authed=False)

    # -- reading the state

    def _is_current(self) -> bool:
        now = self._now()
        return (
            self.state is SignInState.AUTHED
            and 0 <= now - self._checked_at < CHECK_SECONDS
            and not self._is_due()
        )

    async def _update_state(self) -> None:
        """Update the state from the secrets or the store."""
        if self._auth.login is None:
            await self._check_secrets()
        else:
            await self._load_state()
        self._checked_at = self._now()

    async def _check_secrets(self) -> None:
        if self.state is SignInState.EXPIRED and self._refresh is None:
            self._apply_event(SignInEvent.NOT_REFRESHED, self.reason)
        self._missing_secrets = list(await self._missing())
        absent = [*self._missing_secrets, *self._missing_paths()]
        if absent:
            self._apply_event(SignInEvent.KEYS_MISSING, f"missing: {', '.join(absent)}")
        elif self.state is not SignInState.EXPIRED and (
            self._now() - self._rejected_at >= SECRETS_RETRY_SECONDS
            or self.state is SignInState.AUTHED
        ):
            self._apply_event(SignInEvent.KEYS_FOUND)

    def _missing_paths(self) -> list[str]:
        folder = self.manifest.folder
        return [
            path
            for path in self._auth.state_paths
            if not (folder / Path(path).expanduser()).exists()
        ]

    async def _load_state(self) -> None:
        stored = await asyncio.to_thread(self._store.state, *self._key)
        authed, refreshed_at = stored or (False, 0.0)
        if authed and (self.state is not SignInState.EXPIRED or refreshed_at > self.refreshed_at):
            self.refreshed_at = refreshed_at
            self._apply_event(SignInEvent.RESTORED)
        elif not authed and self.state is SignInState.UNKNOWN:
            self._apply_event(SignInEvent.READY)
        elif not authed and self.state in (SignInState.AUTHED, SignInState.EXPIRED):
            self._apply_event(SignInEvent.SIGNED_OUT, "an operator signed out")

    # -- refreshing

    def _is_due(self) -> bool:
        refresh = self._auth.refresh
        if self._refresh is None or refresh is None or refresh.every is None:
            return False
        now = self._now()
        return (
            now - self.refreshed_at >= refresh.every
            and now - self._refresh_tried_at >= REFRESH_RETRY_SECONDS
        )

    async def _refresh_sign_in(self) -> None:
        reason = self.reason
        try:
            if self._refresh is None:
                raise RefreshError(reason, is_temporary=False)
            self._refresh_tried_at = self._now()
            await self._refresh()
        except RefreshError as error:
            if error.is_temporary:
                # The next call tries again. If a sign-in was only due for refresh, the driver will
                # report its expiry.
                self._warn(f"{self.manifest.id}: cannot refresh the sign-in: {error.reason}")
                return
            self._apply_event(SignInEvent.NOT_REFRESHED, error.reason)
            if self.state is SignInState.EXPIRED:
                self._apply_event(SignInEvent.NOT_REFRESHED, error.reason)
            await self._save(authed=False)
        else:
            await self._mark_fresh(SignInEvent.REFRESHED)

    async def _mark_fresh(self, event: SignInEvent) -> None:
        self.refreshed_at = self._now()
        self._rejected_at = float("-inf")
        self._apply_event(event)
        await self._save(authed=True)
        self._checked_at = self._now()

    # -- state

    async def _save(self, *, authed: bool) -> None:
        if self._auth.login is not None:
            refreshed_at = self.refreshed_at if authed else 0.0
            saving = asyncio.to_thread(
                self._store.save, *self._key, authed=authed, refreshed_at=refreshed_at
            )
            await asyncio.shield(saving)

    def _apply_event(self, event: SignInEvent, reason: str = "") -> None:
        new_state = next_state(self.state, event)
        if new_state is None:
            return
        previous, self.state, self.reason = self.state, new_state, reason
        if new_state is not previous and self._on_change is not None:
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
