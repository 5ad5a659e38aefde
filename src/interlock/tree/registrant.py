"""Keeps this node registered with a parent: dials, registers, says that it is alive, and when the
parent is lost finds the next one.

Parents are tried in the order of the config, all of them before the first pause. Whoever has it
keeps it: a better parent that comes back is taken only once the present one is lost. All time is
given: the clocks, the sleeping, the dice.
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


# -- Where a subserver stands with its parent: the states, and what leads from one to the next.
# Pure.
#
# The table is the whole truth: what is not in it does not happen, and the diagram in the docs is
# made from it.


class RegistrantState(Enum):
    IDLE = "idle"
    DIALLING = "dialling"
    INTRODUCING = "introducing"
    """`initialize` is under way."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    WAITING = "waiting"
    """No parent would have it; the next round begins later."""
    LEAVING = "leaving"
    """`mcpax/deregister` is under way."""
    ENDED = "ended"


class RegistrantEvent(Enum):
    BEGIN = "begin"
    DIALLED = "dialled"
    INTRODUCED = "introduced"
    GRANTED = "granted"
    FAILED = "failed"
    """Not reached, refused, or silent, before it was registered."""
    FORGOTTEN = "forgotten"
    """The parent knows of no such session."""
    LOST = "lost"
    """The channel is closed, or the parent is silent."""
    NEXT = "next"
    """Another parent is tried, or the same once more."""
    GIVEN_UP = "given_up"
    """It is not to be tried again."""
    LEAVE = "leave"
    END = "end"


MOVES: Final[dict[tuple[RegistrantState, RegistrantEvent], RegistrantState]] = {
    (RegistrantState.IDLE, RegistrantEvent.BEGIN): RegistrantState.DIALLING,
    (RegistrantState.DIALLING, RegistrantEvent.DIALLED): RegistrantState.INTRODUCING,
    (RegistrantState.INTRODUCING, RegistrantEvent.INTRODUCED): RegistrantState.REGISTERING,
    (RegistrantState.REGISTERING, RegistrantEvent.GRANTED): RegistrantState.REGISTERED,
    (RegistrantState.REGISTERED, RegistrantEvent.FORGOTTEN): RegistrantState.REGISTERING,
    (RegistrantState.REGISTERED, RegistrantEvent.LOST): RegistrantState.WAITING,
    (RegistrantState.DIALLING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.INTRODUCING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.REGISTERING, RegistrantEvent.FAILED): RegistrantState.WAITING,
    (RegistrantState.WAITING, RegistrantEvent.NEXT): RegistrantState.DIALLING,
    (RegistrantState.WAITING, RegistrantEvent.GIVEN_UP): RegistrantState.ENDED,
    (RegistrantState.REGISTERED, RegistrantEvent.LEAVE): RegistrantState.LEAVING,
    **{(state, RegistrantEvent.END): RegistrantState.ENDED for state in RegistrantState},
}
"""Where an event leads."""


def move(state: RegistrantState, event: RegistrantEvent) -> RegistrantState:
    """The next state. Raises KeyError for what cannot happen."""
    return MOVES[state, event]


# -- What a parent says when it does not want a subserver, and what can be done about it. Pure.

PERMANENT: Final = frozenset(
    {
        AUTHORITY_REJECTED, CONFIG, CYCLE_DETECTED, FORBIDDEN, INVALID_SEGMENT, NAMESPACE_CONFLICT,
        UNAUTHENTICATED, UNSUPPORTED_VERSION,
    }
)  # fmt: skip
"""What trying again will hardly change."""
_LONGEST: Final = 500

_ADVICE: Final = {
    AUTHORITY_REJECTED: "Prove the authority with a key or a certificate that the parent trusts.",
    CYCLE_DETECTED: "Name a parent that is not below this node.",
    FORBIDDEN: "Ask whoever runs the parent for leave to register.",
    INVALID_SEGMENT: "Choose a segment of a-z, 0-9, _ and -.",
    NAMESPACE_CONFLICT: "Choose another segment, or end the one that has it.",
    SPLIT_BRAIN: "It is registered elsewhere in the same tree: end it there, or wait.",
    UNAUTHENTICATED: "Present a token that the parent knows.",
    UNSUPPORTED_VERSION: "Run versions of Interlock that have a revision in common.",
}


_BY_STATUS: Final = {401: UNAUTHENTICATED, 403: FORBIDDEN}


class ParentRejectionError(InterlockError):
    """The parent answered with an error."""

    def __init__(self, code: int, symbol: str, data: Any = None) -> None:
        row = failure_for_ax(code, symbol) or _BY_CODE.get(code)
        detail = data.pop("detail", None) if isinstance(data, dict) else None
        said = detail if isinstance(detail, str) and detail else symbol
        super().__init__(
            row or UPSTREAM_ERROR, said[:_LONGEST], data if isinstance(data, dict) else None
        )
        self.code = code
        self.symbol = symbol[:_LONGEST] if row is None else row.ax_name or row.name

    @property
    def permanent(self) -> bool:
        return self.failure in PERMANENT


_BY_CODE: Final[dict[int, Failure]] = {
    row.ax_code: row for row in (*PERMANENT, SPLIT_BRAIN) if row.ax_code <= -31000
}


def read_refusal(error: ErrorObject) -> ParentRejectionError:
    """The error that a parent answered with."""
    data: Any = None
    if error.data is not UNSET:
        try:
            data = decode_value(error.data)
        except ProtocolError:
            # What it adds cannot be read; the code says enough.
            data = None
    return ParentRejectionError(error.code, error.message, data)


def refusal_by_symbol(symbol: str, detail: str = "") -> ParentRejectionError | None:
    """What a parent means that closes a channel with this word. None: nothing that is known."""
    for row in (*PERMANENT, SPLIT_BRAIN):
        if symbol and row.ax_name == symbol:
            return ParentRejectionError(row.ax_code, symbol, {"detail": detail} if detail else None)
    return None


def refusal_at_the_door(error: InterlockError) -> InterlockError:
    """What a parent means that does not even open a channel."""
    row = _BY_STATUS.get((error.data or {}).get("status", 0))
    return error if row is None else InterlockError(row, error.message, error.data)


def advice(error: InterlockError) -> str:
    """What to do about it, as a sentence; empty when nothing is known."""
    return _ADVICE.get(error.failure, "")


def advice_on(symbol: str) -> str:
    """The same, for what a status shows of an error."""
    return next(
        (said for row, said in _ADVICE.items() if symbol in (row.ax_name or row.name, row.name)), ""
    )


# -- What a subserver asks its parent, and what a registrant needs of whoever speaks with it.


class ParentLink(Protocol):
    """Our side of a channel to a parent."""

    @property
    def ended_by(self) -> ParentRejectionError | None:
        """Why the parent ended the registration, where it said so in words that are known."""

    def take(self, data: bytes) -> None:
        """A message from the parent."""

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        """Ask the parent. The future has the raw result, or an InterlockError. Whoever no longer
        waits cancels it."""

    def announce(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that is about none of the parent's requests."""

    def closed(self) -> None:
        """The channel is gone. Told once."""


class ParentRequests:
    """The requests that a parent has not answered yet."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: dict[bytes, asyncio.Future[bytes]] = {}
        self._last = 0

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        self._last += 1
        # A string: servers behind a node put their questions to its parent under numbers.
        id = b'"mcpax-%d"' % self._last
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[id] = answer
        answer.add_done_callback(lambda _: self._open.pop(id, None))
        name = jsonrpc.encode_value(method)
        self._send(b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (id, name, params))
        return answer

    def answered(self, message: Message) -> bool:
        """Take a response. False: it answers nothing that was asked here."""
        answer = None if message.id is UNSET else self._open.get(bytes(message.id))
        if answer is None:
            return False
        if answer.done():
            return True
        if message.error is not UNSET:
            answer.set_exception(read_refusal(jsonrpc.decode_error(message.error)))
        elif message.result is not UNSET:
            answer.set_result(bytes(message.result))
        return True

    def give_up(self) -> None:
        """The parent will not answer any more."""
        for answer in list(self._open.values()):
            if not answer.done():
                answer.set_exception(InterlockError(UPSTREAM_LOST, "The parent is gone."))
                # Looked at here: nobody may be waiting for this one.
                answer.exception()


def read_ended(message: Message) -> ParentRejectionError | None:
    """Why a parent ends a registration (`notifications/mcpax/session_ended`)."""
    if message.params is UNSET:
        return None
    try:
        said = jsonrpc.decode_value(message.params)
    except ProtocolError:
        return None
    if not isinstance(said, dict):
        return None
    symbol, detail = said.get("message"), said.get("detail")
    return refusal_by_symbol(
        symbol if isinstance(symbol, str) else "", detail if isinstance(detail, str) else ""
    )


# -- What a parent refuses because of who is below this node. Pure.


def about_subtree(error: ParentRejectionError) -> bool:
    """Whether somebody below is the reason."""
    return error.failure is CYCLE_DETECTED or only_news(error)


def only_news(error: ParentRejectionError) -> bool:
    """Whether the ids below cannot be taken, too many as they are; of a loop nothing is said."""
    field = (error.data or {}).get("field")
    return error.code == INVALID_PARAMS.ax_code and field == ax.SUBTREE_IDS


# -- Which parent is tried next, and when. Pure: the dice are given.
#
# Parents are tried in their order, all of them before the first pause. A pause grows from round
# to round, slowly where every parent refuses for a reason that time will hardly mend.

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
LONGEST_WHEN_REFUSED: Final = 30.0
AT_ONCE: Final = 0.25
"""Those who lost the same parent do not all come back in the same moment."""

SETTLED: Final = 10.0
"""A registration that held for less counts as one more try: else whoever is thrown out at once
would come back at once."""


class ParentTimeoutError(InterlockError):
    """A parent does not answer any more, though nobody hung up."""

    def __init__(self, message: str) -> None:
        super().__init__(UPSTREAM_LOST, message)


def for_good(failed: InterlockError, *, registered: bool) -> bool:
    """Whether a parent refused for a reason that trying again will hardly change. `registered`: it
    had taken it in before."""
    if failed.failure in PERMANENT:
        return True
    if registered:
        # Another parent of the same tree has it. Before, that may lapse by itself.
        return failed.failure is SPLIT_BRAIN
    if not isinstance(failed, ParentRejectionError) or only_news(failed):
        return False
    return failed.code == INVALID_PARAMS.ax_code


class ParentRotation:
    """The order in which parents are tried."""

    def __init__(
        self, urls: Sequence[str], *, heartbeat: float, jitter: Callable[[], float]
    ) -> None:
        """`jitter` gives numbers from 0 to 1."""
        self._urls = urls
        self._heartbeat = heartbeat
        self._jitter = jitter
        self._place = 0
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_WHEN_REFUSED, jitter=jitter)
        self._refused = 0
        self.hopeless = False
        """Whether all of them, one after the other, refused for good."""

    @property
    def url(self) -> str:
        """The one whose turn it is."""
        return self._urls[self._place]

    def after(self, failed: InterlockError, *, lasted: float | None, refused: bool) -> float:
        """It failed: how long to wait for the next one.

        `lasted`: how long it was registered, None for never. When that had gone well for a while, a
        new round begins, soon: with the first parent, or with the next one if this one just fell
        silent, as it may be for long. `refused`: for good.
        """
        self.hopeless = False
        if lasted is not None and lasted >= SETTLED and not refused:
            silent = isinstance(failed, ParentTimeoutError)
            self._place = (self._place + 1) % len(self._urls) if silent else 0
            self._backoff.reset()
            self._refused = 0
            return self._jitter() * min(AT_ONCE, self._heartbeat or AT_ONCE)
        self._refused += refused
        self._place = (self._place + 1) % len(self._urls)
        if self._place:
            return 0.0
        self.hopeless = self._refused == len(self._urls)
        self._refused = 0
        longest, wanted = LONGEST_PAUSE, None
        if self.hopeless:
            longest = LONGEST_WHEN_REFUSED
            if lasted is not None and failed.failure is not CYCLE_DETECTED:
                # Taken in and sent away: each try is work for everybody above and below. A loop is
                # mended at once, by sending those away who make it.
                wanted = longest
        elif failed.failure is SPLIT_BRAIN:
            # What the parent before has of us lapses after a few heartbeats.
            longest = min(longest, max(1.0, self._heartbeat))
        return self._backoff.next_delay(wanted, limit=longest)


# -- What the log says of how it stands with a parent: what is new, and not every try.
#
# A parent that takes a subserver in and sends it away again, each time for the same reason, is
# told of once: neither that it registers nor that it is sent away is news, until it stays.

_log = logging.getLogger("interlock.tree")


class RegistrantLog:
    """Writes to the log."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        """What went wrong last with each parent, as it was told."""
        self._refused = False
        """Whether that was a refusal which trying again will hardly change."""
        self._owed = ""

    def registered(self, segment: str, url: str) -> None:
        self._owed = f"registered as {segment} with {url}"
        if not self._refused:
            self.stayed()

    def stayed(self) -> None:
        """It has been registered for a while."""
        if self._owed:
            _log.info("%s", self._owed)
        self._owed, self._refused = "", False
        self._said.clear()

    def failed(self, url: str, error: InterlockError, *, refused: bool) -> None:
        """It did not come to a registration."""
        self._tell(url, f"not registered with {url}: {error.message}", refused)

    def lost(self, url: str, error: InterlockError, *, refused: bool) -> None:
        """A registration has ended."""
        self._tell(url, f"the parent is lost: {error.message}", refused)

    def _tell(self, url: str, sentence: str, refused: bool) -> None:
        if sentence != self._said.get(url):
            _log.warning("%s", sentence)
        self._said[url] = sentence
        self._refused, self._owed = refused, ""


# -- The first words with a parent: `initialize`, and what its answer says of it. Pure.


class Parent(NamedTuple):
    """Somebody to register with."""

    id: str
    """Its aggregator_id; empty when it does not say."""
    tree_id: str
    version: str
    """The revision of MCP-AX to speak with it."""


def introduction(name: str = "interlock", version: str = __version__) -> bytes:
    """The params of `initialize`."""
    return jsonrpc.encode_value(
        {
            "protocolVersion": mcp.LATEST_SESSION,
            "capabilities": {"experimental": {ax.EXPERIMENT: {"versions": ax.VERSIONS}}},
            "clientInfo": {"name": name, "version": version},
        }
    )


def read_parent(answer: bytes, url: str) -> Parent:
    """Who answered. Raises InterlockError when nobody can register there."""
    said = jsonrpc.decode_value(answer)
    for key in ("capabilities", "experimental", ax.EXPERIMENT):
        said = said.get(key) if isinstance(said, dict) else None
    if not isinstance(said, dict):
        raise InterlockError(
            UNSUPPORTED_VERSION, f"{url} is an MCP server that nobody can register with."
        )
    versions = said.get("versions")
    spoken = [one for one in ax.VERSIONS if isinstance(versions, list) and one in versions]
    if not spoken:
        raise InterlockError(
            UNSUPPORTED_VERSION, f"{url} speaks no revision of MCP-AX that is spoken here."
        )
    id, tree_id = said.get("aggregator_id"), said.get("tree_id")
    # A tree that has no proper id is one that it does not speak of.
    tree = tree_id if isinstance(tree_id, str) and ax.is_uuid(tree_id) else ""
    return Parent(id if isinstance(id, str) else "", tree, spoken[-1])


# -- Opens a channel to a parent, and understands one that does not let anybody in.


class Dialer(Protocol):
    """Opens a channel to a parent. Raises InterlockError."""

    async def __call__(
        self, url: str, *, bearer: str | None = None, ssl: ssl.SSLContext | None = None
    ) -> Channel: ...


async def reach(url: str, settings: ParentConfig, dial: Dialer) -> Channel:
    """An open channel. Raises InterlockError."""
    secure = None
    if url.lower().startswith("wss:"):
        # Read anew each time: certificates are renewed while a node runs.
        secure = client_context(settings.ca, settings.certificate, settings.key)
    try:
        return await dial(url, bearer=settings.token, ssl=secure)
    except InterlockError as error:
        raise refusal_at_the_door(error) from None


# -- The proof of an authority: a token for one parent, signed with the authority's key.
#
# The clock is given. Nothing of the key ever stands in an error.

PROOF_SECONDS: Final = 300
"""A proof is made for one registration; clocks may differ a little."""
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def check_key(key: str) -> None:
    """Raises InterlockError for what no authority can be proven with."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise InterlockError(
            CONFIG, "A proof of authority needs the package joserfc: install interlock[oauth]."
        ) from None
    _key(key)


def mint_proof(authority: str, key: str, aggregator_id: str, wall_clock: Clock) -> AuthorityProof:
    """A token that proves an authority to one parent, once. Raises InterlockError."""
    check_key(key)
    from joserfc import jwt

    signing, algorithm = _key(key)
    now = int(wall_clock())
    claims = {
        "sub": dns_name(authority),
        "aud": aggregator_id,
        "iat": now,
        "exp": now + PROOF_SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    header = {"alg": algorithm, "typ": "JWT"}
    with warnings.catch_warnings():
        # `EdDSA` has a newer name by now, which not every parent knows.
        warnings.simplefilter("ignore", category=UserWarning)
        return AuthorityProof("jwt", jwt.encode(header, claims, signing, algorithms=[algorithm]))


def _key(pem: str) -> tuple[RSAKey | ECKey | OKPKey, str]:
    """A private key, and how it signs."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[type[RSAKey | ECKey | OKPKey], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            # Of another kind, or no key at all.
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
        CONFIG, "The authority's key is no private key (PEM) for Ed25519, ECDSA or RSA."
    )


# -- What a subserver brings to its parent, looked at before anybody is dialled.
#
# Whoever gave a bad value is told which one it was, where it came from and what to do; its text
# is never shown. Reads the files that the settings name, and nothing else.

SHORTEST_HEARTBEAT: Final = 0.01
_TOKEN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def check_presented(parent: ParentConfig, origins: Mapping[str, str]) -> None:
    """`parent` has no references any more; `origins` says by field what people call it, such as
    `--authority`. Raises ConfigError."""

    def origin(field: str) -> str:
        return origins.get(field, field)

    if parent.token is not None:
        _check_token(parent.token, origin("token"))
    if parent.authority is not None and not ax.is_authority(parent.authority):
        raise ConfigError.of(
            f"{origin('authority')}: {parent.authority!r} is not an authority",
            "write a DNS name behind dns:, such as dns:edge01.example.com",
        )
    if parent.authority_key is not None:
        if parent.authority is None:
            _wants(origin("authority_key"), origin("authority"))
        try:
            check_key(parent.authority_key)
        except InterlockError as error:
            raise ConfigError.of(f"{origin('authority_key')}: {error.message}") from None
    if parent.certificate is None and parent.key is not None:
        _wants(origin("key"), origin("certificate"))
    beat = parent.heartbeat
    if beat and not SHORTEST_HEARTBEAT <= beat <= ax.MAX_INTERVAL_MS / 1000:
        raise ConfigError.of(
            f"{origin('heartbeat')}: nobody beats every {beat:g} s",
            "choose 0, for none, or from 10 ms to 24 h",
        )
    if any(url.lower().startswith("wss:") for url in (parent.url, *parent.backup)):
        try:
            client_context(parent.ca, parent.certificate, parent.key)
        except InterlockError as error:
            raise ConfigError.of(error.message) from None


def _wants(one: str, other: str) -> None:
    raise ConfigError.of(f"{one} is nothing without {other}", f"give {other} too")


def _check_token(token: str, origin: str) -> None:
    if _TOKEN.fullmatch(token):
        return
    if not token.strip():
        raise ConfigError.of(f"{origin} is empty", "put the token there that the node knows")
    if _TOKEN.fullmatch(token.strip()):
        what = "a line end" if token.rstrip("\r\n") != token else "a space"
        raise ConfigError.of(
            f"{origin} has {what} around the token", f"take it without {what}: strip it"
        )
    raise ConfigError.of(
        f"{origin} holds characters that no token has",
        "a token is made of plain letters, digits and signs, on one line",
    )


PATIENCE: Final = 10.0
"""How long a parent may take to be dialled, and to answer each of the first two requests. It asks
back before it answers the second."""
FAREWELL: Final = 2.0
"""How long leaving may take."""
BEAT_AFTER: Final = 0.7
"""The part of an interval after which the next heartbeat is sent: it must be there before the
interval ends."""
_UNSURE: Final = 30.0
"""When no heartbeats were agreed on: how long an answer may take."""
_EVERYTHING: Final = ax.SubserverCapabilities(tools=True, resources=True, notifications=True)

T = TypeVar("T")


class Registrant:
    """One subserver, as it stands with its parents."""

    def __init__(
        self,
        *,
        parent: ParentConfig,
        subserver_id: str,
        role: str,
        converse: Callable[[Channel, Registrant], ParentLink],
        subtree_ids: Callable[[], tuple[str, ...] | None] = lambda: None,
        descendant_ids: Callable[[], tuple[str, ...]] = lambda: (),
        on_registered: Callable[[ax.RegistrationResult], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
        on_state: Callable[[Registrant], None] = lambda _: None,
        on_refused: Callable[[InterlockError], None] = lambda _: None,
        on_duplicates: Callable[[Collection[str]], None] = lambda _: None,
        offers: ax.SubserverCapabilities = _EVERYTHING,
        transport_class: str = ax.NATIVE,
        auth_scope: str | None = ADMIN,
        once: bool = False,
        stubborn: bool = True,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Clock = random.random,
        dial: Dialer = dial_channel,
    ) -> None:
        """`parent` has no references any more: `config.resolve_parent` has seen it.

        `role` is `leaf` or `aggregator`; a leaf's `subtree_ids` gives None. `converse` makes the
        conversation on a channel. `on_registered` is told again when the parent's tree or budget is
        another than before; `on_lost` once for each registration that ends. `on_refused`: the
        parent refuses who is below (`data` may say whose `aggregator_id`); it may be asked again
        when they are gone. `descendant_ids` are those of all subservers below; `on_duplicates`:
        the parent knows these elsewhere in the tree. `auth_scope`: the most it wants to be asked
        for. `once`: when the parent is lost or does not want it, that is the end.
        `stubborn`: try again also when all parents refuse for a reason that will hardly change.
        """
        self._settings = parent
        self._subserver_id = subserver_id
        self._role = role
        self._converse = converse
        self._subtree_ids = subtree_ids
        self._descendant_ids = descendant_ids
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._on_duplicates = on_duplicates
        self.on_state = on_state
        """Told whenever it has come to another state."""
        self._offers = offers
        self._transport_class = transport_class
        self._auth_scope = auth_scope
        self._once = once
        self.stubborn = stubborn
        self.refused = False
        """Whether the last try was refused for a reason that will hardly change."""
        self._telling = RegistrantLog()
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = jitter
        self._dial = dial
        self._interval = round(parent.heartbeat * 1000)
        self._state = RegistrantState.IDLE
        self._since = wall_clock()
        self._url = parent.url
        self._problem: InterlockError | None = None
        self.granted: ax.RegistrationResult | None = None
        """What the parent granted. The same object until something of it is another. An attribute,
        as every call from a parent is held against it."""
        self._announced: tuple[str, ...] | None = None
        """The subtree that the parent knows of."""
        self._reported: tuple[str, ...] = ()
        """The descendants that the parent knows of."""
        self._beats = 0
        self._granted_at = 0.0
        self._gone: InterlockError | None = None
        """Why the channel is closed."""
        self._channel: Channel | None = None
        self._conversation: ParentLink | None = None
        self._woken = asyncio.Event()
        """Something happened that cannot wait for the next heartbeat."""
        self._task: asyncio.Task[None] | None = None

    # -- life

    def begin(self) -> None:
        """Begin to look for a parent."""
        if self._state is RegistrantState.IDLE:
            self._move(RegistrantEvent.BEGIN)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="registrant")

    async def end(self) -> None:
        """Say goodbye, if there is somebody to say it to, and stop. Takes at most two seconds."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._state is RegistrantState.REGISTERED and self._conversation is not None:
            self._move(RegistrantEvent.LEAVE)
            granted, self.granted = self.granted, None
            session = "" if granted is None else granted.session_id
            params = jsonrpc.encode_value(ax.DeregistrationParams(session, "it stops"))
            try:
                await self._within(FAREWELL, self._conversation.request(ax.DEREGISTER, params))
            except InterlockError as error:
                _log.info("the parent did not acknowledge the deregistration: %s", error)
        channel = self._channel
        self._hang_up()
        if channel is not None:
            try:
                await self._within(FAREWELL, asyncio.ensure_future(channel.wait_closed()))
            except InterlockError:
                _log.info("the channel to the parent did not close in time")
        if self._state is not RegistrantState.ENDED:
            self._move(RegistrantEvent.END)

    async def until_over(self) -> None:
        """Wait until it has ended by itself, as one does that tries only once."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def changed(self) -> None:
        """Somebody joined or left below: the parent is told at once."""
        self._woken.set()

    def keys_changed(self, jwks: Raw) -> None:
        """The parent signs its tokens with other keys from now on."""
        if self.granted is not None:
            self.granted = replace(self.granted, jwks=jwks)

    def tell(self, method: str, params: bytes | Raw | None) -> None:
        """Send the parent a notification that is about none of its requests. Lost without one."""
        if self.granted is not None and self._conversation is not None:
            self._conversation.announce(method, params)

    # -- how it stands

    @property
    def state(self) -> RegistrantState:
        return self._state

    @property
    def problem(self) -> InterlockError | None:
        """What went wrong last. None once it is registered."""
        return self._problem

    @property
    def url(self) -> str:
        return self._url

    @property
    def assigned_segment(self) -> str | None:
        """What this node is called by its parent. None: it has none now."""
        return None if self.granted is None else self.granted.assigned_segment

    @property
    def parent_id(self) -> str | None:
        return None if self.granted is None else self.granted.aggregator_id or None

    @property
    def tree_id(self) -> str | None:
        return None if self.granted is None else self.granted.tree_id or None

    def identity(self) -> ax.SubserverIdentity:
        """Who this is, and with whom it is registered."""
        return ax.SubserverIdentity(self._subserver_id, self.parent_id, self._role, self.tree_id)

    def status(self) -> ParentStatus:
        granted, problem = self.granted, self._problem
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
            since=self._since,
            problem=None if problem is None else problem.message,
            symbol=symbol,
            segment=self._settings.segment if granted is None else granted.assigned_segment,
            session_id="" if granted is None else granted.session_id,
            parent_id=self.parent_id or "",
            tree_id=self.tree_id or "",
            beats=self._beats,
        )

    def _move(self, event: RegistrantEvent) -> None:
        self._state = move(self._state, event)
        self._since = self._wall_clock()
        self.on_state(self)

    # -- rounds

    async def _run(self) -> None:
        settings = self._settings
        rounds = ParentRotation(
            (settings.url, *settings.backup), heartbeat=settings.heartbeat, jitter=self._jitter
        )
        while True:
            self._url = rounds.url
            failed, lasted = await self._try(self._url)
            wait = rounds.after(failed, lasted=lasted, refused=self.refused)
            if self._once or (rounds.hopeless and not self.stubborn):
                self._move(RegistrantEvent.GIVEN_UP)
                return
            if wait:
                await self._sleep(wait)
            self._move(RegistrantEvent.NEXT)

    async def _try(self, url: str) -> tuple[InterlockError, float | None]:
        """Be with one parent until that fails: why it did, and how long it was registered. None: it
        never was."""
        self._gone = None
        try:
            failed = await self._serve(url)
        except InterlockError as error:
            failed = error
        except Exception:
            _log.exception("registering failed inside the node")
            failed = InterlockError(
                UPSTREAM_LOST, "Registering failed inside the node; see its log."
            )
        # Why the channel is closed says more than that it is.
        failed = self._gone or failed
        self._hang_up()
        self.granted = None
        self._problem = failed
        registered = self._state is RegistrantState.REGISTERED
        self.refused = for_good(failed, registered=registered)
        if not registered:
            self._telling.failed(url, failed, refused=self.refused)
            self._move(RegistrantEvent.FAILED)
            return failed, None
        self._telling.lost(url, failed, refused=self.refused)
        self._move(RegistrantEvent.LOST)
        self._on_lost(failed.message)
        return failed, self._clock() - self._granted_at

    # -- with one parent

    async def _serve(self, url: str) -> InterlockError:
        """Register with a parent and stay with it. Why it is over, or raises InterlockError."""
        self._take(await reach(url, self._settings, self._dial))
        self._move(RegistrantEvent.DIALLED)
        parent = await self._introduce()
        self._move(RegistrantEvent.INTRODUCED)
        while True:
            await self._register(parent)
            over = await self._stay()
            if over is not None:
                return over
            _log.info("%s has forgotten this node: it registers again", url)
            self.granted = None
            self._move(RegistrantEvent.FORGOTTEN)
            self._on_lost("The parent has forgotten it.")

    def _take(self, channel: Channel) -> None:
        """Everything that comes on this channel is for the conversation."""
        self._channel = channel
        self._conversation = conversation = self._converse(channel, self)
        channel.on_close = lambda reason: self._closed(conversation, reason)
        channel.on_message = conversation.take

    def _closed(self, conversation: ParentLink, reason: str) -> None:
        if conversation is not self._conversation or self._channel is None:
            return
        said = refusal_by_symbol(self._channel.close_reason)
        lost = InterlockError(UPSTREAM_LOST, f"{self._url} is lost: {reason}.")
        self._gone = conversation.ended_by or said or lost
        self._channel = self._conversation = None
        conversation.closed()
        self._woken.set()

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        conversation, self._conversation = self._conversation, None
        if channel is not None:
            channel.close()
        if conversation is not None:
            conversation.closed()

    async def _ask(self, method: str, params: bytes) -> bytes:
        """The parent's answer. Raises InterlockError."""
        if self._conversation is None:
            raise InterlockError(UPSTREAM_LOST, f"{self._url} is lost.")
        return await self._within(PATIENCE, self._conversation.request(method, params))

    async def _within(self, seconds: float, answer: asyncio.Future[T]) -> T:
        nap: asyncio.Future[Any] = asyncio.ensure_future(self._sleep(seconds))
        waiting: set[asyncio.Future[Any]] = {nap, answer}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE, f"{self._url} did not answer within {seconds:g} s."
                )
            return answer.result()
        finally:
            nap.cancel()
            answer.cancel()

    async def _introduce(self) -> Parent:
        """Say who this is, and hear who the parent is."""
        answer = await self._ask(mcp.INITIALIZE, introduction())
        parent = read_parent(answer, self._url)
        if self._conversation is not None:
            self._conversation.announce(mcp.INITIALIZED, None)
        return parent

    async def _register(self, parent: Parent) -> None:
        settings = self._settings
        proof = None
        if settings.authority is not None and settings.authority_key is not None:
            proof = mint_proof(
                settings.authority, settings.authority_key, parent.id, self._wall_clock
            )
        subtree, descendants = self._subtree_ids(), self._descendant_ids()
        registration = ax.Registration(
            subserver_id=self._subserver_id,
            segment=settings.segment,
            capabilities=self._offers,
            transport_class=self._transport_class,
            heartbeat_interval_ms=self._interval,
            version=parent.version,
            authority=settings.authority,
            authority_proof=proof,
            subtree_ids=subtree,
            descendant_ids=descendants,
            auth_scope=self._auth_scope,
        )
        try:
            answer = await self._ask(ax.REGISTER, registration.encode_params())
        except ParentRejectionError as error:
            if about_subtree(error):
                self._on_refused(error)
            raise
        granted = ax.read_registration_result(answer, settings.segment)
        self._announced, self._reported = subtree, descendants
        self._granted_at = self._clock()
        self._beats = 0
        self._problem = None
        self.granted = replace(
            granted,
            aggregator_id=granted.aggregator_id or parent.id,
            tree_id=granted.tree_id or parent.tree_id,
        )
        self._move(RegistrantEvent.GRANTED)
        self._telling.registered(granted.assigned_segment, self._url)
        self._on_registered(self.granted)
        self._heard_duplicates(granted.duplicate_ids)

    # -- registered

    async def _stay(self) -> InterlockError | None:
        """Beat until the parent is lost: why. None: it has forgotten the session."""
        assert self.granted is not None
        every = self._interval / 1000
        limit = (
            (self.granted.heartbeat_deadline_ms / 1000)
            or ax.MAX_MISSED_HEARTBEATS * every
            or _UNSURE
        )
        due = self._clock() + every * BEAT_AFTER if every else math.inf
        beats: dict[asyncio.Future[bytes], float] = {}
        try:
            while True:
                self._woken.clear()
                if self._gone is not None or self._conversation is None:
                    return self._gone or InterlockError(UPSTREAM_LOST, f"{self._url} is lost.")
                for beat in [one for one in beats if one.done()]:
                    if self._forgotten(beat):
                        return None
                    # It is alive: whatever it owes for earlier ones is of no interest.
                    for earlier in list(beats):
                        del beats[earlier]
                        earlier.cancel()
                        if earlier is beat:
                            break
                now = self._clock()
                oldest = min(beats.values(), default=math.inf)
                if now >= oldest + limit:
                    return ParentTimeoutError(f"{self._url} is lost: it is silent for {limit:g} s.")
                if now >= due or self._has_news():
                    beat = self._beat(self._conversation)
                    beats[beat] = now
                    beat.add_done_callback(lambda _: self._woken.set())
                    due = now + every * BEAT_AFTER if every else math.inf
                await self._rest(min(due, min(beats.values(), default=math.inf) + limit) - now)
        finally:
            for beat in beats:
                beat.cancel()

    def _has_news(self) -> bool:
        """Whether the parent does not know who is below now."""
        return self._subtree_ids() != self._announced or self._descendant_ids() != self._reported

    def _heard_duplicates(self, ids: tuple[str, ...] | UnsetType) -> None:
        if ids is not UNSET and ids:
            self._on_duplicates(ids)

    def _beat(self, conversation: ParentLink) -> asyncio.Future[bytes]:
        assert self.granted is not None
        subtree, descendants = self._subtree_ids(), self._descendant_ids()
        beat = ax.HeartbeatParams(
            self.granted.session_id,
            None if subtree == self._announced else subtree,
            None if descendants == self._reported else descendants,
        )
        self._announced, self._reported = subtree, descendants
        answer = conversation.request(ax.HEARTBEAT, beat.encode_params())
        answer.add_done_callback(self._heard)
        return answer

    def _heard(self, beat: asyncio.Future[bytes]) -> None:
        """At once: the parent may hang up with the same breath."""
        error = None if beat.cancelled() else beat.exception()
        if isinstance(error, ParentRejectionError) and about_subtree(error):
            self._on_refused(error)

    def _forgotten(self, beat: asyncio.Future[bytes]) -> bool:
        """Take the answer to a heartbeat. True: there is no such session. Raises InterlockError."""
        try:
            answer = ax.read_heartbeat_result(beat.result())
        except InterlockError as error:
            if error.failure is UNKNOWN_SESSION:
                return True
            if isinstance(error, ParentRejectionError) and only_news(error):
                # What it knew before still holds.
                return False
            raise
        self._beats += 1
        self._heard_duplicates(answer.duplicate_ids)
        if self._clock() - self._granted_at >= SETTLED:
            self._telling.stayed()
        granted = self.granted
        if granted is not None:
            news = replace(
                granted,
                tree_id=answer.tree_id or granted.tree_id,
                budget=answer.budget or granted.budget,
                jwks=granted.jwks if answer.jwks is UNSET else answer.jwks,
            )
            if news != granted:
                self.granted = news
                self._on_registered(news)
        return False

    async def _rest(self, seconds: float) -> None:
        """Until the time has come, or something has happened."""
        woken = asyncio.ensure_future(self._woken.wait())
        waiting: set[asyncio.Future[Any]] = {woken}
        if math.isfinite(seconds):
            waiting.add(asyncio.ensure_future(self._sleep(max(0.0, seconds))))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
