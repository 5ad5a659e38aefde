"""The registration of this node with a parent: connects, registers, sends heartbeats, and finds
another parent when the connection is lost.

Parents are tried in the order of the config, all of them before the first pause. The node stays
with its present parent until that parent is lost, also when an earlier parent of the list is back.
Clocks, sleep and random numbers are parameters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import secrets
import ssl
import time
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from interlock import __version__
from interlock.channels.channel import Channel
from interlock.channels.dial import dial as dial_channel
from interlock.channels.tls import client_context
from interlock.core.config import ConfigError
from interlock.core.ports import Clock
from interlock.errors import (
    AUTHORITY_REJECTED,
    CONFIG,
    CYCLE_DETECTED,
    FORBIDDEN,
    INTERNAL_ERROR_TEXT,
    INVALID_PARAMS,
    INVALID_SEGMENT,
    NAMESPACE_CONFLICT,
    SPLIT_BRAIN,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    UNSUPPORTED_VERSION,
    UPSTREAM_ERROR,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
    ProtocolError,
    failure_for_ax,
)
from interlock.primitives.backoff import Backoff
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import ErrorObject, Message, decode_value
from interlock.protocol.mcpax import AuthorityProof, dns_name
from interlock.protocol.scopes import ADMIN
from interlock.tree.config import ParentConfig
from interlock.tree.status import ParentStatus

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey


# -- The states of a registration, and the transitions between them. Pure.
#
# The table is complete: other transitions do not happen. The diagram in the docs is made from it.


class RegistrantState(Enum):
    IDLE = "idle"
    DIALLING = "dialling"
    INTRODUCING = "introducing"
    """`initialize` is under way."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    WAITING = "waiting"
    """No parent accepted the registration. The next round begins later."""
    LEAVING = "leaving"
    """`mcpax/deregister` is under way."""
    ENDED = "ended"


class RegistrantEvent(Enum):
    BEGIN = "begin"
    DIALLED = "dialled"
    INTRODUCED = "introduced"
    GRANTED = "granted"
    FAILED = "failed"
    """The parent was unreachable, rejected the registration, or did not respond."""
    SESSION_UNKNOWN = "session unknown"
    """The parent does not know the session any more."""
    LOST = "lost"
    """The channel is closed, or the parent does not respond."""
    RETRY = "retry"
    """The next attempt begins, with the same or another parent."""
    STOPPED = "stopped"
    """No further attempt is made."""
    LEAVE = "leave"
    END = "end"


TRANSITIONS: Final[dict[tuple[RegistrantState, RegistrantEvent], RegistrantState]] = {
    (RegistrantState.IDLE, RegistrantEvent.BEGIN): RegistrantState.DIALLING,
    (RegistrantState.DIALLING, RegistrantEvent.DIALLED): RegistrantState.INTRODUCING,
    (RegistrantState.INTRODUCING, RegistrantEvent.INTRODUCED): RegistrantState.REGISTERING,
    (RegistrantState.REGISTERING, RegistrantEvent.GRANTED): RegistrantState.REGISTERED,
    (RegistrantState.REGISTERED, RegistrantEvent.SESSION_UNKNOWN): RegistrantState.REGISTERING,
    (RegistrantState.REGISTERED, RegistrantEvent.LOST): RegistrantState.WAITING,
    (RegistrantState.DIALLING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.INTRODUCING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.REGISTERING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.WAITING, RegistrantEvent.RETRY): RegistrantState.DIALLING,
    (RegistrantState.WAITING, RegistrantEvent.STOPPED): RegistrantState.ENDED,
    (RegistrantState.REGISTERED, RegistrantEvent.LEAVE): RegistrantState.LEAVING,
    **{(state, RegistrantEvent.END): RegistrantState.ENDED for state in RegistrantState},
}
"""The next state for each state and event."""


def next_state(state: RegistrantState, event: RegistrantEvent) -> RegistrantState:
    """Return the next state. Raises KeyError for an impossible transition."""
    return TRANSITIONS[state, event]


# -- The rejections of a parent, and how to fix them. Pure.

PERMANENT_FAILURES: Final = frozenset(
    {
        AUTHORITY_REJECTED, CONFIG, CYCLE_DETECTED, FORBIDDEN, INVALID_SEGMENT, NAMESPACE_CONFLICT,
        UNAUTHENTICATED, UNSUPPORTED_VERSION,
    }
)  # fmt: skip
"""Failures that another attempt will not change."""
_MAX_TEXT_LENGTH: Final = 500

_FIXES: Final = {
    AUTHORITY_REJECTED: "Prove the authority with a key or a certificate that the parent trusts.",
    CYCLE_DETECTED: "Choose a parent that is not below this node.",
    FORBIDDEN: "Ask the administrator of the parent for the permission to register.",
    INVALID_SEGMENT: "Choose a segment of a-z, 0-9, _ and -.",
    NAMESPACE_CONFLICT: "Choose another segment, or stop the subserver that has it.",
    SPLIT_BRAIN: "The subserver is registered elsewhere in the tree: stop it there, or wait.",
    UNAUTHENTICATED: "Use a token that the parent accepts.",
    UNSUPPORTED_VERSION: "Update Interlock, so that both nodes support a common MCP-AX revision.",
}


_BY_STATUS: Final = {401: UNAUTHENTICATED, 403: FORBIDDEN}


class ParentRejectionError(InterlockError):
    """An error response of the parent."""

    def __init__(self, code: int, symbol: str, data: Any = None) -> None:
        failure = failure_for_ax(code, symbol) or _BY_CODE.get(code)
        detail = data.pop("detail", None) if isinstance(data, dict) else None
        text = detail if isinstance(detail, str) and detail else symbol
        super().__init__(
            failure or UPSTREAM_ERROR,
            text[:_MAX_TEXT_LENGTH],
            data if isinstance(data, dict) else None,
        )
        self.code = code
        self.symbol = (
            symbol[:_MAX_TEXT_LENGTH] if failure is None else failure.ax_name or failure.name
        )

    @property
    def permanent(self) -> bool:
        return self.failure in PERMANENT_FAILURES


_BY_CODE: Final[dict[int, Failure]] = {
    failure.ax_code: failure
    for failure in (*PERMANENT_FAILURES, SPLIT_BRAIN)
    if failure.ax_code <= -31000
}


def read_rejection(error: ErrorObject) -> ParentRejectionError:
    """Convert an error response of a parent."""
    data: Any = None
    if error.data is not UNSET:
        try:
            data = decode_value(error.data)
        except ProtocolError:
            # The details are unreadable, but the code is sufficient.
            data = None
    return ParentRejectionError(error.code, error.message, data)


def find_rejection(symbol: str, detail: str = "") -> ParentRejectionError | None:
    """Return the rejection for the symbol in a close reason. None: the symbol is unknown."""
    for failure in (*PERMANENT_FAILURES, SPLIT_BRAIN):
        if symbol and failure.ax_name == symbol:
            return ParentRejectionError(
                failure.ax_code, symbol, {"detail": detail} if detail else None
            )
    return None


def read_connection_rejection(error: InterlockError) -> InterlockError:
    """Convert the error of a failed connection, by its HTTP status."""
    failure = _BY_STATUS.get((error.data or {}).get("status", 0))
    return error if failure is None else InterlockError(failure, error.message, error.data)


def suggest_fix(error: InterlockError) -> str:
    """Suggest how to fix an error, in a sentence. Empty: no suggestion."""
    return _FIXES.get(error.failure, "")


def suggest_fix_for_symbol(symbol: str) -> str:
    """Suggest how to fix an error, by its symbol in a status."""
    return next(
        (
            fix
            for failure, fix in _FIXES.items()
            if symbol in (failure.ax_name or failure.name, failure.name)
        ),
        "",
    )


# -- The conversation with a parent, as the registrant uses it, and requests to the parent.


class ParentLink(Protocol):
    """The local side of a channel to a parent."""

    @property
    def ended_by(self) -> ParentRejectionError | None:
        """The reason for which the parent ended the registration, if it sent a known one."""

    def process_message(self, data: bytes) -> None:
        """Process a message from the parent."""

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        """Send a request to the parent.

        The future gets the raw result or an InterlockError. Cancel it to stop waiting.
        """

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that is about none of the parent's requests."""

    def closed(self) -> None:
        """Handle the end of the channel. Called once."""


class ParentRequests:
    """The pending requests to a parent."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._pending: dict[bytes, asyncio.Future[bytes]] = {}
        self._last_id = 0

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        self._last_id += 1
        # A string, because client requests of the node's servers use numbers as ids.
        id = b'"mcpax-%d"' % self._last_id
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[id] = response
        response.add_done_callback(lambda _: self._pending.pop(id, None))
        name = jsonrpc.encode_value(method)
        self._send(b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (id, name, params))
        return response

    def handle_response(self, message: Message) -> bool:
        """Process a response. Return False if it belongs to no request of this object."""
        response = None if message.id is UNSET else self._pending.get(bytes(message.id))
        if response is None:
            return False
        if response.done():
            return True
        if message.error is not UNSET:
            response.set_exception(read_rejection(jsonrpc.decode_error(message.error)))
        elif message.result is not UNSET:
            response.set_result(bytes(message.result))
        return True

    def fail_all(self) -> None:
        """Fail all pending requests, because the channel is closed."""
        for response in list(self._pending.values()):
            if not response.done():
                response.set_exception(
                    InterlockError(UPSTREAM_LOST, "The connection to the parent is lost.")
                )
                # Mark the exception as retrieved: the caller may have stopped waiting.
                response.exception()


def read_session_end(message: Message) -> ParentRejectionError | None:
    """Read why a parent ends a registration (`notifications/mcpax/session_ended`)."""
    if message.params is UNSET:
        return None
    try:
        params = jsonrpc.decode_value(message.params)
    except ProtocolError:
        return None
    if not isinstance(params, dict):
        return None
    symbol, detail = params.get("message"), params.get("detail")
    return find_rejection(
        symbol if isinstance(symbol, str) else "", detail if isinstance(detail, str) else ""
    )


# -- Rejections that concern the subtree of this node. Pure.


def is_subtree_rejection(error: ParentRejectionError) -> bool:
    """Return whether a node in the subtree is the reason of a rejection."""
    return error.failure is CYCLE_DETECTED or is_subtree_update_rejection(error)


def is_subtree_update_rejection(error: ParentRejectionError) -> bool:
    """Return whether the parent rejected only the list of subtree ids, because it is too long."""
    field = (error.data or {}).get("field")
    return error.code == INVALID_PARAMS.ax_code and field == ax.SUBTREE_IDS


# -- The order of attempts, and the pauses between them. Pure: random numbers are a parameter.
#
# Parents are tried in their order, all of them before the first pause. The pause grows from round
# to round. It is longer if every parent rejected the registration for a permanent reason.

FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 5.0
MAX_REJECTED_PAUSE_SECONDS: Final = 30.0
MAX_RECONNECT_JITTER_SECONDS: Final = 0.25
"""Random delay, so that all children of a lost parent do not reconnect at the same time."""

STABLE_AFTER_SECONDS: Final = 10.0
"""A shorter registration counts as a failed attempt. Otherwise a subserver that is dismissed at
once would register again at once."""


class ParentLostError(InterlockError):
    """The connection to a parent was lost."""

    def __init__(self, url: str, reason: str = "it was closed") -> None:
        self.reason = reason.removesuffix(".")
        super().__init__(UPSTREAM_LOST, f"Connection to {url} lost: {self.reason}.")


class ParentTimeoutError(ParentLostError):
    """A parent stopped responding, but the channel is open."""


def is_permanent(failure: InterlockError, *, was_registered: bool) -> bool:
    """Return whether another attempt will not change a failure.

    Args:
        was_registered: True if the subserver was registered before the failure.
    """
    if failure.failure in PERMANENT_FAILURES:
        return True
    if was_registered:
        # Another parent of the tree has the subserver. Without a registration here, the lease of
        # the other parent may expire by itself.
        return failure.failure is SPLIT_BRAIN
    if not isinstance(failure, ParentRejectionError) or is_subtree_update_rejection(failure):
        return False
    return failure.code == INVALID_PARAMS.ax_code


class ParentRotation:
    """The order in which parents are tried."""

    def __init__(
        self, urls: Sequence[str], *, heartbeat: float, jitter: Callable[[], float]
    ) -> None:
        """Args:
        jitter: returns numbers from 0 to 1."""
        self._urls = urls
        self._heartbeat = heartbeat
        self._jitter = jitter
        self._index = 0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, MAX_REJECTED_PAUSE_SECONDS, jitter=jitter)
        self._rejections = 0
        self.all_rejected = False
        """True if every parent of the last round rejected the registration permanently."""

    @property
    def url(self) -> str:
        """The parent of the next attempt."""
        return self._urls[self._index]

    def choose_pause(
        self, failure: InterlockError, *, duration: float | None, permanent: bool
    ) -> float:
        """Select the next parent after a failure. Return the pause before the next attempt.

        After a stable registration, a new round begins soon: with the first parent, or with the
        next one if this parent stopped responding, because that can take long.

        Args:
            duration: how long the registration lasted. None: it was not registered.
            permanent: True if another attempt will not change the failure.
        """
        self.all_rejected = False
        if duration is not None and duration >= STABLE_AFTER_SECONDS and not permanent:
            is_silent = isinstance(failure, ParentTimeoutError)
            self._index = (self._index + 1) % len(self._urls) if is_silent else 0
            self._backoff.reset()
            self._rejections = 0
            return self._jitter() * min(
                MAX_RECONNECT_JITTER_SECONDS, self._heartbeat or MAX_RECONNECT_JITTER_SECONDS
            )
        self._rejections += permanent
        self._index = (self._index + 1) % len(self._urls)
        if self._index:
            return 0.0
        self.all_rejected = self._rejections == len(self._urls)
        self._rejections = 0
        max_pause, minimum = MAX_PAUSE_SECONDS, None
        if self.all_rejected:
            max_pause = MAX_REJECTED_PAUSE_SECONDS
            if duration is not None and failure.failure is not CYCLE_DETECTED:
                # Registered and then dismissed: each attempt is work for the nodes above and below.
                # A cycle is different: it is repaired at once, by dismissing the nodes that cause
                # it.
                minimum = max_pause
        elif failure.failure is SPLIT_BRAIN:
            # The lease at the previous parent expires after a few heartbeats.
            max_pause = min(max_pause, max(1.0, self._heartbeat))
        return self._backoff.next_delay(minimum, limit=max_pause)


# -- The log of a registration: only changes, not every attempt.
#
# If a parent repeatedly accepts and dismisses a subserver for the same reason, this is logged once,
# until a registration is stable.

_log = logging.getLogger("interlock.tree")


class RegistrantLog:
    """Logs the changes of a registration."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        """The last logged error of each parent."""
        self._is_rejected = False
        """True if the last error was a permanent rejection."""
        self._unlogged_registration = ""
        """A registration that is logged when it is stable."""

    def on_registered(self, segment: str, url: str) -> None:
        self._unlogged_registration = f"parent {url}: registered as {segment}"
        if not self._is_rejected:
            self.on_stable()

    def on_stable(self) -> None:
        """Handle a registration that has been stable for a while."""
        if self._unlogged_registration:
            _log.info("%s", self._unlogged_registration)
        self._unlogged_registration, self._is_rejected = "", False
        self._messages.clear()

    def on_failure(self, url: str, error: InterlockError, *, is_rejected: bool) -> None:
        """Log a failed attempt."""
        detail = error.message
        if isinstance(error, ParentLostError):
            detail = f"connection lost: {error.reason}"
        self._warn(url, f"parent {url}: not registered: {detail}", is_rejected)

    def on_lost(self, url: str, error: InterlockError, *, is_rejected: bool) -> None:
        """Log the end of a registration."""
        detail = error.reason if isinstance(error, ParentLostError) else error.message
        self._warn(url, f"parent {url}: connection lost: {detail}", is_rejected)

    def _warn(self, url: str, message: str, is_rejected: bool) -> None:
        if message != self._messages.get(url):
            _log.warning("%s", message)
        self._messages[url] = message
        self._is_rejected, self._unlogged_registration = is_rejected, ""


# -- The handshake with a parent: `initialize` and its response. Pure.


class ParentInfo(NamedTuple):
    """The `initialize` response of a parent."""

    id: str
    """Its aggregator_id. Empty: unknown."""
    tree_id: str
    version: str
    """The MCP-AX revision to use."""


def initialize_params(name: str = "interlock", version: str = __version__) -> bytes:
    """Return the params of `initialize`."""
    return jsonrpc.encode_value(
        {
            "protocolVersion": mcp.LATEST_SESSION,
            "capabilities": {"experimental": {ax.EXPERIMENT: {"versions": ax.VERSIONS}}},
            "clientInfo": {"name": name, "version": version},
        }
    )


def read_parent(response: bytes, url: str) -> ParentInfo:
    """Read the response to `initialize`. Raises InterlockError if it is not a parent."""
    member = jsonrpc.decode_value(response)
    for key in ("capabilities", "experimental", ax.EXPERIMENT):
        member = member.get(key) if isinstance(member, dict) else None
    if not isinstance(member, dict):
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"{url} is an MCP server without MCP-AX. Use the address of a node's "
            "`subservers.path`.",
        )
    versions = member.get("versions")
    common_versions = [
        version for version in ax.VERSIONS if isinstance(versions, list) and version in versions
    ]
    if not common_versions:
        raise InterlockError(
            UNSUPPORTED_VERSION, f"{url} supports no MCP-AX revision that this node supports."
        )
    id, tree_id = member.get("aggregator_id"), member.get("tree_id")
    # An invalid tree id is treated like a missing one.
    tree = tree_id if isinstance(tree_id, str) and ax.is_uuid(tree_id) else ""
    return ParentInfo(id if isinstance(id, str) else "", tree, common_versions[-1])


# -- The channel to a parent.


class Dialer(Protocol):
    """Opens a channel to a parent. Raises InterlockError."""

    async def __call__(
        self, url: str, *, bearer: str | None = None, ssl: ssl.SSLContext | None = None
    ) -> Channel: ...


async def open_channel(url: str, settings: ParentConfig, dial: Dialer) -> Channel:
    """Open a channel to a parent. Raises InterlockError."""
    ssl_context = None
    if url.lower().startswith("wss:"):
        # Read the files for each connection, because certificates are renewed while a node runs.
        ssl_context = client_context(settings.ca, settings.certificate, settings.key)
    try:
        return await dial(url, bearer=settings.token, ssl=ssl_context)
    except InterlockError as error:
        raise read_connection_rejection(error) from None


# -- The proof of an authority: a token for one parent, signed with the authority's key.
#
# The clock is a parameter. Errors never contain any part of the key.

PROOF_LIFETIME_SECONDS: Final = 300
"""A proof is for one registration. The lifetime allows for differences between clocks."""
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def check_authority_key(key: str) -> None:
    """Check that a key can prove an authority. Raises InterlockError."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise InterlockError(
            CONFIG,
            "A proof of authority needs the package joserfc. Install it: "
            "pip install 'interlock[oauth]'",
        ) from None
    _read_private_key(key)


def mint_proof(authority: str, key: str, aggregator_id: str, wall_clock: Clock) -> AuthorityProof:
    """Create a token that proves an authority to one parent. Raises InterlockError."""
    check_authority_key(key)
    from joserfc import jwt

    signing_key, algorithm = _read_private_key(key)
    now = int(wall_clock())
    claims = {
        "sub": dns_name(authority),
        "aud": aggregator_id,
        "iat": now,
        "exp": now + PROOF_LIFETIME_SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    header = {"alg": algorithm, "typ": "JWT"}
    with warnings.catch_warnings():
        # `EdDSA` is deprecated, but not every parent knows the new name.
        warnings.simplefilter("ignore", category=UserWarning)
        return AuthorityProof(
            "jwt", jwt.encode(header, claims, signing_key, algorithms=[algorithm])
        )


def _read_private_key(pem: str) -> tuple[RSAKey | ECKey | OKPKey, str]:
    """Return a private key and its signature algorithm. Raises InterlockError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[type[RSAKey | ECKey | OKPKey], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            # Another kind of key, or not a key.
            continue
        if not key.is_private:
            continue
        if isinstance(key, RSAKey):
            return key, "RS256"
        if isinstance(key, ECKey) and key.curve_name in _EC_ALGORITHMS:
            return key, _EC_ALGORITHMS[key.curve_name]
        if isinstance(key, OKPKey) and key.curve_name in ("Ed25519", "Ed448"):
            return key, "EdDSA"
    raise InterlockError(
        CONFIG, "The key of the authority is not a private key (PEM) for Ed25519, ECDSA or RSA."
    )


# -- Checks of the credentials for a parent, before the first connection.
#
# An error names the option and says what to do. It never contains the value. The checks read only
# the files that the settings name.

MIN_HEARTBEAT_SECONDS: Final = 0.01
_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def check_credentials(parent: ParentConfig, origins: Mapping[str, str]) -> None:
    """Check the credentials for a parent. Raises ConfigError.

    Args:
        parent: the settings, with resolved references.
        origins: the name of each field for error messages, such as `--authority`.
    """

    def origin(field: str) -> str:
        return origins.get(field, field)

    if parent.token is not None:
        _check_token(parent.token, origin("token"))
    if parent.authority is not None and not ax.is_authority(parent.authority):
        raise ConfigError.of(
            f"{origin('authority')}: {parent.authority!r} is not an authority",
            "write dns: and a DNS name, such as dns:edge01.example.com",
        )
    if parent.authority_key is not None:
        if parent.authority is None:
            _missing_option_error(origin("authority_key"), origin("authority"))
        try:
            check_authority_key(parent.authority_key)
        except InterlockError as error:
            raise ConfigError.of(f"{origin('authority_key')}: {error.message}") from None
    if parent.certificate is None and parent.key is not None:
        _missing_option_error(origin("key"), origin("certificate"))
    interval = parent.heartbeat
    if interval and not MIN_HEARTBEAT_SECONDS <= interval <= ax.MAX_INTERVAL_MS / 1000:
        raise ConfigError.of(
            f"{origin('heartbeat')}: {interval:g} s is out of range",
            "choose 0 for no heartbeats, or 10 ms to 24 h",
        )
    if any(url.lower().startswith("wss:") for url in (parent.url, *parent.backup)):
        try:
            client_context(parent.ca, parent.certificate, parent.key)
        except InterlockError as error:
            raise ConfigError.of(error.message) from None


def _missing_option_error(option: str, required_option: str) -> None:
    raise ConfigError.of(f"{option} requires {required_option}", f"add {required_option}")


def _check_token(token: str, origin: str) -> None:
    if _TOKEN_PATTERN.fullmatch(token):
        return
    if not token.strip():
        raise ConfigError.of(f"{origin} is empty", "set it to a token that the node accepts")
    if _TOKEN_PATTERN.fullmatch(token.strip()):
        whitespace = "a line end" if token.rstrip("\r\n") != token else "a space"
        raise ConfigError.of(f"{origin} has {whitespace} around the token", f"remove {whitespace}")
    raise ConfigError.of(
        f"{origin} has characters that are not valid in a token",
        "use only printable ASCII characters, on one line",
    )


REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""The time limit for a connection and for each of the first two responses. The parent sends its own
request (`mcpax/identify`) before the second response."""
LEAVE_TIMEOUT_SECONDS: Final = 2.0
"""The time limit for the deregistration."""
HEARTBEAT_FRACTION: Final = 0.7
"""The fraction of the interval after which the next heartbeat is sent. It must arrive before the
interval ends."""
_DEFAULT_SILENCE_SECONDS: Final = 30.0
"""The time limit for a response if no heartbeats were agreed."""
_ALL_CAPABILITIES: Final = ax.SubserverCapabilities(tools=True, resources=True, notifications=True)

T = TypeVar("T")


class Registrant:
    """The registration of one subserver with one of its parents."""

    def __init__(
        self,
        *,
        parent: ParentConfig,
        subserver_id: str,
        role: str,
        create_conversation: Callable[[Channel, Registrant], ParentLink],
        subtree_ids: Callable[[], tuple[str, ...] | None] = lambda: None,
        descendant_ids: Callable[[], tuple[str, ...]] = lambda: (),
        on_registered: Callable[[ax.RegistrationResult], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
        on_state: Callable[[Registrant], None] = lambda _: None,
        on_subtree_rejected: Callable[[InterlockError], None] = lambda _: None,
        on_duplicates: Callable[[Collection[str]], None] = lambda _: None,
        offers: ax.SubserverCapabilities = _ALL_CAPABILITIES,
        transport_class: str = ax.NATIVE,
        auth_scope: str | None = ADMIN,
        is_single_attempt: bool = False,
        retries_rejections: bool = True,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Clock = random.random,
        dial: Dialer = dial_channel,
    ) -> None:
        """Create the registration. `start` starts it.

        Args:
            parent: the settings, with resolved references (`config.resolve_parent`).
            role: `leaf` or `aggregator`.
            create_conversation: creates the conversation on a channel.
            subtree_ids: returns the aggregators below. A leaf returns None.
            descendant_ids: returns the ids of all subservers below.
            on_registered: called after each registration, and when the parent reports another tree
                or budget.
            on_lost: called once when a registration ends.
            on_state: called after each state change.
            on_subtree_rejected: called when the parent rejects a node of the subtree. `data` of
            the error
                can have its `aggregator_id`. After that node is dismissed, a new attempt can
                succeed.
            on_duplicates: called with the ids that are registered elsewhere in the tree.
            auth_scope: the highest scope of calls that the subserver accepts.
            is_single_attempt: end when the parent is lost or rejects the registration.
            retries_rejections: repeat the attempts also after a permanent rejection by all parents.
        """
        self._settings = parent
        self._subserver_id = subserver_id
        self._role = role
        self._create_conversation = create_conversation
        self._subtree_ids = subtree_ids
        self._descendant_ids = descendant_ids
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_subtree_rejected = on_subtree_rejected
        self._on_duplicates = on_duplicates
        self.on_state = on_state
        """Called after each state change."""
        self._offers = offers
        self._transport_class = transport_class
        self._auth_scope = auth_scope
        self._is_single_attempt = is_single_attempt
        self.retries_rejections = retries_rejections
        self.is_rejected = False
        """True if the last attempt failed for a permanent reason."""
        self._state_log = RegistrantLog()
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = jitter
        self._dial = dial
        self._interval = round(parent.heartbeat * 1000)
        self._state = RegistrantState.IDLE
        self._state_time = wall_clock()
        self._url = parent.url
        self._problem: InterlockError | None = None
        self.registration_result: ax.RegistrationResult | None = None
        """The result of the registration, or None. The object is replaced when a value changes. An
        attribute, because it is read for every call of the parent."""
        self._sent_subtree_ids: tuple[str, ...] | None = None
        """The subtree ids that were sent to the parent."""
        self._sent_descendant_ids: tuple[str, ...] = ()
        """The descendant ids that were sent to the parent."""
        self._heartbeat_count = 0
        self._registered_at = 0.0
        self._close_error: InterlockError | None = None
        """The reason for which the channel was closed."""
        self._channel: Channel | None = None
        self._conversation: ParentLink | None = None
        self._wakeup = asyncio.Event()
        """Set by events that cannot wait for the next heartbeat."""
        self._task: asyncio.Task[None] | None = None

    # -- life

    def start(self) -> None:
        """Start the registration in the background."""
        if self._state is RegistrantState.IDLE:
            self._change_state(RegistrantEvent.BEGIN)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="registrant")

    async def end(self) -> None:
        """Deregister, if registered, and stop. Each step takes at most two seconds."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._state is RegistrantState.REGISTERED and self._conversation is not None:
            self._change_state(RegistrantEvent.LEAVE)
            registration_result, self.registration_result = self.registration_result, None
            session = "" if registration_result is None else registration_result.session_id
            params = jsonrpc.encode_value(ax.DeregistrationParams(session, "it stops"))
            try:
                await self._wait_with_timeout(
                    LEAVE_TIMEOUT_SECONDS, self._conversation.request(ax.DEREGISTER, params)
                )
            except InterlockError as error:
                _log.info("parent: deregistration was not acknowledged: %s", error)
        channel = self._channel
        self._close_channel()
        if channel is not None:
            try:
                await self._wait_with_timeout(
                    LEAVE_TIMEOUT_SECONDS, asyncio.ensure_future(channel.wait_closed())
                )
            except InterlockError:
                _log.info("parent: the channel did not close in time")
        if self._state is not RegistrantState.ENDED:
            self._change_state(RegistrantEvent.END)

    async def wait_until_ended(self) -> None:
        """Wait until the registration has ended by itself (`is_single_attempt`)."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def on_subtree_changed(self) -> None:
        """Report a change of the subtree to the parent, at once."""
        self._wakeup.set()

    def on_keys_changed(self, jwks: Raw) -> None:
        """Store the new keys with which the parent signs its tokens."""
        if self.registration_result is not None:
            self.registration_result = replace(self.registration_result, jwks=jwks)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification to the parent that belongs to no request. Without a parent it is
        dropped."""
        if self.registration_result is not None and self._conversation is not None:
            self._conversation.send_notification(method, params)

    # -- state

    @property
    def state(self) -> RegistrantState:
        return self._state

    @property
    def problem(self) -> InterlockError | None:
        """The last error. None: registered."""
        return self._problem

    @property
    def url(self) -> str:
        return self._url

    @property
    def assigned_segment(self) -> str | None:
        """The segment that the parent assigned. None: not registered."""
        return (
            None if self.registration_result is None else self.registration_result.assigned_segment
        )

    @property
    def parent_id(self) -> str | None:
        return (
            None
            if self.registration_result is None
            else self.registration_result.aggregator_id or None
        )

    @property
    def tree_id(self) -> str | None:
        return (
            None if self.registration_result is None else self.registration_result.tree_id or None
        )

    def identity(self) -> ax.SubserverIdentity:
        """Return the ids of this subserver and of its parent (`mcpax/identify`)."""
        return ax.SubserverIdentity(self._subserver_id, self.parent_id, self._role, self.tree_id)

    def status(self) -> ParentStatus:
        registration_result, problem = self.registration_result, self._problem
        symbol = ""
        if problem is not None:
            symbol = (
                problem.symbol
                if isinstance(problem, ParentRejectionError)
                else problem.failure.name
            )
        return ParentStatus(
            url=self._url,
            state=self._state.value,
            since=self._state_time,
            problem=None if problem is None else problem.message,
            symbol=symbol,
            segment=self._settings.segment
            if registration_result is None
            else registration_result.assigned_segment,
            session_id="" if registration_result is None else registration_result.session_id,
            parent_id=self.parent_id or "",
            tree_id=self.tree_id or "",
            beats=self._heartbeat_count,
        )

    def _change_state(self, event: RegistrantEvent) -> None:
        self._state = next_state(self._state, event)
        self._state_time = self._wall_clock()
        self.on_state(self)

    # -- rounds

    async def _run(self) -> None:
        settings = self._settings
        rotation = ParentRotation(
            (settings.url, *settings.backup), heartbeat=settings.heartbeat, jitter=self._jitter
        )
        while True:
            self._url = rotation.url
            failure, duration = await self._run_with_parent(self._url)
            pause = rotation.choose_pause(failure, duration=duration, permanent=self.is_rejected)
            if self._is_single_attempt or (rotation.all_rejected and not self.retries_rejections):
                self._change_state(RegistrantEvent.STOPPED)
                return
            if pause:
                await self._sleep(pause)
            self._change_state(RegistrantEvent.RETRY)

    async def _run_with_parent(self, url: str) -> tuple[InterlockError, float | None]:
        """Run with one parent until a failure.

        Returns the failure, and how long the registration lasted (None: it was not registered).
        """
        self._close_error = None
        try:
            failure = await self._register_and_stay(url)
        except InterlockError as error:
            failure = error
        except Exception:
            _log.exception("parent: internal error during the registration")
            failure = InterlockError(UPSTREAM_LOST, INTERNAL_ERROR_TEXT)
        # The reason of the close is more specific than a failed request.
        failure = self._close_error or failure
        self._close_channel()
        self.registration_result = None
        self._problem = failure
        was_registered = self._state is RegistrantState.REGISTERED
        self.is_rejected = is_permanent(failure, was_registered=was_registered)
        if not was_registered:
            self._state_log.on_failure(url, failure, is_rejected=self.is_rejected)
            self._change_state(RegistrantEvent.FAILED)
            return failure, None
        self._state_log.on_lost(url, failure, is_rejected=self.is_rejected)
        self._change_state(RegistrantEvent.LOST)
        self._on_lost(failure.message)
        return failure, self._clock() - self._registered_at

    # -- with one parent

    async def _register_and_stay(self, url: str) -> InterlockError:
        """Register with a parent and stay until a failure. Return it, or raise InterlockError."""
        self._attach_channel(await open_channel(url, self._settings, self._dial))
        self._change_state(RegistrantEvent.DIALLED)
        parent = await self._introduce()
        self._change_state(RegistrantEvent.INTRODUCED)
        while True:
            await self._register(parent)
            end_error = await self._send_heartbeats()
            if end_error is not None:
                return end_error
            _log.info("parent %s: the session is unknown, registering again", url)
            self.registration_result = None
            self._change_state(RegistrantEvent.SESSION_UNKNOWN)
            self._on_lost("The parent does not know the session any more.")

    def _attach_channel(self, channel: Channel) -> None:
        """Connect a channel with a new conversation."""
        self._channel = channel
        self._conversation = conversation = self._create_conversation(channel, self)
        channel.on_close = lambda reason: self._on_channel_closed(conversation, reason)
        channel.on_message = conversation.process_message

    def _on_channel_closed(self, conversation: ParentLink, reason: str) -> None:
        if conversation is not self._conversation or self._channel is None:
            return
        rejection = find_rejection(self._channel.close_reason)
        lost_error = ParentLostError(self._url, reason)
        self._close_error = conversation.ended_by or rejection or lost_error
        self._channel = self._conversation = None
        conversation.closed()
        self._wakeup.set()

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        conversation, self._conversation = self._conversation, None
        if channel is not None:
            channel.close()
        if conversation is not None:
            conversation.closed()

    async def _request(self, method: str, params: bytes) -> bytes:
        """Send a request to the parent and return the result. Raises InterlockError."""
        if self._conversation is None:
            raise ParentLostError(self._url)
        return await self._wait_with_timeout(
            REQUEST_TIMEOUT_SECONDS, self._conversation.request(method, params)
        )

    async def _wait_with_timeout(self, seconds: float, response: asyncio.Future[T]) -> T:
        timer: asyncio.Future[Any] = asyncio.ensure_future(self._sleep(seconds))
        waiting: set[asyncio.Future[Any]] = {timer, response}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not response.done():
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE, f"{self._url} did not respond within {seconds:g} s."
                )
            return response.result()
        finally:
            timer.cancel()
            response.cancel()

    async def _introduce(self) -> ParentInfo:
        """Send `initialize` and read the response."""
        response = await self._request(mcp.INITIALIZE, initialize_params())
        parent = read_parent(response, self._url)
        if self._conversation is not None:
            self._conversation.send_notification(mcp.INITIALIZED, None)
        return parent

    async def _register(self, parent: ParentInfo) -> None:
        settings = self._settings
        proof = None
        if settings.authority is not None and settings.authority_key is not None:
            proof = mint_proof(
                settings.authority, settings.authority_key, parent.id, self._wall_clock
            )
        subtree_ids, descendant_ids = self._subtree_ids(), self._descendant_ids()
        registration = ax.Registration(
            subserver_id=self._subserver_id,
            segment=settings.segment,
            capabilities=self._offers,
            transport_class=self._transport_class,
            heartbeat_interval_ms=self._interval,
            version=parent.version,
            authority=settings.authority,
            authority_proof=proof,
            subtree_ids=subtree_ids,
            descendant_ids=descendant_ids,
            auth_scope=self._auth_scope,
        )
        try:
            response = await self._request(ax.REGISTER, registration.encode_params())
        except ParentRejectionError as error:
            if is_subtree_rejection(error):
                self._on_subtree_rejected(error)
            raise
        registration_result = ax.read_registration_result(response, settings.segment)
        self._sent_subtree_ids, self._sent_descendant_ids = subtree_ids, descendant_ids
        self._registered_at = self._clock()
        self._heartbeat_count = 0
        self._problem = None
        self.registration_result = replace(
            registration_result,
            aggregator_id=registration_result.aggregator_id or parent.id,
            tree_id=registration_result.tree_id or parent.tree_id,
        )
        self._change_state(RegistrantEvent.GRANTED)
        self._state_log.on_registered(registration_result.assigned_segment, self._url)
        self._on_registered(self.registration_result)
        self._report_duplicates(registration_result.duplicate_ids)

    # -- registered

    async def _send_heartbeats(self) -> InterlockError | None:
        """Send heartbeats until the parent is lost.

        Returns the failure. None: the parent does not know the session any more.
        """
        assert self.registration_result is not None
        interval = self._interval / 1000
        silence_limit = (
            (self.registration_result.heartbeat_deadline_ms / 1000)
            or ax.MAX_MISSED_HEARTBEATS * interval
            or _DEFAULT_SILENCE_SECONDS
        )
        next_heartbeat_at = self._clock() + interval * HEARTBEAT_FRACTION if interval else math.inf
        pending_heartbeats: dict[asyncio.Future[bytes], float] = {}
        try:
            while True:
                self._wakeup.clear()
                if self._close_error is not None or self._conversation is None:
                    return self._close_error or ParentLostError(self._url)
                for heartbeat in [
                    heartbeat for heartbeat in pending_heartbeats if heartbeat.done()
                ]:
                    if self._handle_heartbeat_response(heartbeat):
                        return None
                    # The parent responds, so earlier heartbeats do not matter any more.
                    for earlier_heartbeat in list(pending_heartbeats):
                        del pending_heartbeats[earlier_heartbeat]
                        earlier_heartbeat.cancel()
                        if earlier_heartbeat is heartbeat:
                            break
                now = self._clock()
                oldest = min(pending_heartbeats.values(), default=math.inf)
                if now >= oldest + silence_limit:
                    return ParentTimeoutError(self._url, f"no response for {silence_limit:g} s")
                if now >= next_heartbeat_at or self._has_subtree_changes():
                    heartbeat = self._send_heartbeat(self._conversation)
                    pending_heartbeats[heartbeat] = now
                    heartbeat.add_done_callback(lambda _: self._wakeup.set())
                    next_heartbeat_at = (
                        now + interval * HEARTBEAT_FRACTION if interval else math.inf
                    )
                await self._wait_for_event(
                    min(
                        next_heartbeat_at,
                        min(pending_heartbeats.values(), default=math.inf) + silence_limit,
                    )
                    - now
                )
        finally:
            for heartbeat in pending_heartbeats:
                heartbeat.cancel()

    def _has_subtree_changes(self) -> bool:
        """Return whether the subtree differs from the one that was sent to the parent."""
        return (
            self._subtree_ids() != self._sent_subtree_ids
            or self._descendant_ids() != self._sent_descendant_ids
        )

    def _report_duplicates(self, ids: tuple[str, ...] | UnsetType) -> None:
        if ids is not UNSET and ids:
            self._on_duplicates(ids)

    def _send_heartbeat(self, conversation: ParentLink) -> asyncio.Future[bytes]:
        assert self.registration_result is not None
        subtree_ids, descendant_ids = self._subtree_ids(), self._descendant_ids()
        heartbeat = ax.HeartbeatParams(
            self.registration_result.session_id,
            None if subtree_ids == self._sent_subtree_ids else subtree_ids,
            None if descendant_ids == self._sent_descendant_ids else descendant_ids,
        )
        self._sent_subtree_ids, self._sent_descendant_ids = subtree_ids, descendant_ids
        response = conversation.request(ax.HEARTBEAT, heartbeat.encode_params())
        response.add_done_callback(self._on_heartbeat_response)
        return response

    def _on_heartbeat_response(self, heartbeat: asyncio.Future[bytes]) -> None:
        """Handle a rejection at once, because the parent can close the channel right after it."""
        error = None if heartbeat.cancelled() else heartbeat.exception()
        if isinstance(error, ParentRejectionError) and is_subtree_rejection(error):
            self._on_subtree_rejected(error)

    def _handle_heartbeat_response(self, heartbeat: asyncio.Future[bytes]) -> bool:
        """Process the response to a heartbeat. Return True if the parent does not know the session.

        Raises InterlockError.
        """
        try:
            response = ax.read_heartbeat_result(heartbeat.result())
        except InterlockError as error:
            if error.failure is UNKNOWN_SESSION:
                return True
            if isinstance(error, ParentRejectionError) and is_subtree_update_rejection(error):
                # The previous subtree stays valid at the parent.
                return False
            raise
        self._heartbeat_count += 1
        self._report_duplicates(response.duplicate_ids)
        if self._clock() - self._registered_at >= STABLE_AFTER_SECONDS:
            self._state_log.on_stable()
        registration_result = self.registration_result
        if registration_result is not None:
            updated = replace(
                registration_result,
                tree_id=response.tree_id or registration_result.tree_id,
                budget=response.budget or registration_result.budget,
                jwks=registration_result.jwks if response.jwks is UNSET else response.jwks,
            )
            if updated != registration_result:
                self.registration_result = updated
                self._on_registered(updated)
        return False

    async def _wait_for_event(self, seconds: float) -> None:
        """Wait until the time has passed or an event has come."""
        woken = asyncio.ensure_future(self._wakeup.wait())
        waiting: set[asyncio.Future[Any]] = {woken}
        if math.isfinite(seconds):
            waiting.add(asyncio.ensure_future(self._sleep(max(0.0, seconds))))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
