"""The people who confirm calls: where they enrol, how they show who they are, and where the page
is that they use."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.call import Caller, Client
from interlock.config import Config
from interlock.errors import INVALID_REQUEST, PROOF_INVALID, UNAUTHENTICATED, InterlockError
from interlock.node.operator_watch import OperatorWatch
from interlock.node.places import state_dir
from interlock.pipeline.approval.anchors import Anchor, public_key
from interlock.pipeline.approval.passkeys import (
    Creation,
    PasskeyChecker,
    from_base64url,
    to_base64url,
)
from interlock.pipeline.approval.proofs import APPROVE, PASSKEY, Proofs
from interlock.pipeline.approval.record import VERIFY, Approval
from interlock.protocol.mcp import LATEST_STATELESS, Era
from interlock.stores.operators import Enrolled, Invitation, OperatorStore

INBOX: Final = "inbox"
"""What an operator signs about who wants to see all that waits."""
SESSION_SECONDS: Final = 900.0
QUESTION_SECONDS: Final = 120.0
_MOST: Final = 1_000
_NONCE_BYTES: Final = 16
_TIME_BYTES: Final = 8
_MARK_BYTES: Final = 16
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE: Final = ("0.0.0.0", "::")
T = TypeVar("T")

_log = logging.getLogger("interlock.node")


def operators_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Who may confirm calls of this node."""
    return state_dir(config, environ, base_dir) / "operators.db"


def page_base(config: Config, url: str | None) -> str | None:
    """The address under which people find the approval page, without a slash at its end.

    `url`: where the node listens. On its own machine it goes by the name `localhost`: browsers
    keep keys by name, and take passkeys for no number. None: nowhere, or at a name that the config
    does not say.
    """
    if config.approvals.url is not None:
        return f"{config.approvals.url.rstrip('/').removesuffix('/approvals')}/approvals"
    parts = urlsplit(url or "")
    if not parts.hostname or parts.hostname in _EVERYWHERE:
        return None
    return local_base(url or "") or f"{parts.scheme}://{parts.netloc}/approvals"


def local_base(url: str) -> str | None:
    """The same for somebody on the node's own machine. None: it does not listen there."""
    parts = urlsplit(url)
    if parts.hostname not in (*_LOOPBACK, *_EVERYWHERE):
        return None
    return f"{parts.scheme}://localhost:{parts.port}/approvals"


def page_origins(config: Config, url: str | None) -> tuple[str, ...]:
    """The origins of that page; on the node's own machine it can be opened there as well."""
    bases = (page_base(config, url), local_base(url or ""))
    parts = [urlsplit(base) for base in bases if base is not None]
    return tuple(dict.fromkeys(f"{one.scheme}://{one.netloc.lower()}" for one in parts))


def thumbprint(key: Any) -> str:
    """By what a public key is known (RFC 7638)."""
    return str(key.thumbprint())


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    key: dict[str, Any] | None = None
    passkey: Creation | None = None


class Operators:
    """Enrolment, and the sessions of those who look at what waits."""

    def __init__(
        self,
        store: OperatorStore,
        *,
        origins: Callable[[], Collection[str]],
        audience: Callable[[], str],
        watch: OperatorWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`origins`: of the approval page. `audience`: the id of this node. `watch`: what knows who
        is enrolled, if it is not made here."""
        self.store = store
        self.watch = watch or OperatorWatch(store.path)
        self.passkeys = PasskeyChecker(find=self.watch.passkey, used=store.used, origins=origins)
        self.proofs: Proofs | None = None
        """Set by the node: what looks at every proof."""
        self._audience = audience
        self._clock = clock
        self._now = wall_clock
        self._question_key = secrets.token_bytes(32)
        self._answered: OrderedDict[str, float] = OrderedDict()
        """The questions that an operator answered, and when they are over anyway."""
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def anchors(self) -> Iterator[Anchor]:
        """Everybody who is enrolled. A passkey signs in its own way: its anchor has no key, and
        says only whose it is and what that one may confirm. Reads no file."""
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, OKPKey

        for one in self.watch.enrolled:
            if one.kind == "passkey":
                yield Anchor(one.name, PASSKEY, tools=one.tools, caller=one.caller)
                continue
            kind = OKPKey if one.algorithm == "EdDSA" else ECKey
            names = ("EdDSA", "Ed25519") if one.algorithm == "EdDSA" else (one.algorithm,)
            try:
                key = kind.import_key(one.public)
            except (JoseError, ValueError, TypeError) as wrong:
                _log.error("the key %s of %s cannot be used: %s", one.id, one.name, wrong)
                continue
            yield Anchor(one.name, key=key, algorithms=names, tools=one.tools, caller=one.caller)

    # -- enrolment

    async def enrol(self, asked: bytes) -> str:
        """Enrol what a browser sent with its code. Without a key or a passkey it only asks whose
        the code is. Returns that name. Raises InterlockError."""
        try:
            request = msgspec.json.decode(asked, type=_Asked)
        except msgspec.MsgspecError as error:
            raise InterlockError(
                INVALID_REQUEST, f"The enrolment cannot be read: {error}."
            ) from None

        def make(invitation: Invitation) -> Enrolled:
            if request.passkey is not None:
                made = self.passkeys.enrolled(request.passkey, request.code, invitation.name)
                return Enrolled.of_passkey(
                    msgspec.structs.replace(made, tools=invitation.tools, caller=invitation.caller)
                )
            assert request.key is not None
            return enrolled_key(request.key, invitation)

        # A disk may be slow, and somebody may hold the file: not on the event loop.
        loop = asyncio.get_running_loop()
        if request.key is None and request.passkey is None:
            invitation = await loop.run_in_executor(None, self.store.invited, request.code)
            name = None if invitation is None else invitation.name
        else:
            one = await loop.run_in_executor(None, self.store.redeem, request.code, make)
            name = None if one is None else one.name
            await self.look_again()
        if name is None:
            raise InterlockError(
                PROOF_INVALID,
                "This code is not good, or no longer: `interlock keys enrol NAME` gives a new one.",
            )
        return name

    # -- sessions

    def question(self) -> dict[str, str]:
        """What an operator signs to see what waits. It says itself until when it is open, marked
        as ours: so nothing has to be remembered, however many ask."""
        ends = int((self._clock() + QUESTION_SECONDS) * 1000)
        said = secrets.token_bytes(_NONCE_BYTES) + ends.to_bytes(_TIME_BYTES, "big")
        return {"nonce": to_base64url(said + self._mark(said)), "aud": self._audience()}

    def _mark(self, said: bytes) -> bytes:
        return blake2b(said, key=self._question_key, digest_size=_MARK_BYTES).digest()

    def _open_until(self, nonce: str) -> float:
        """When a question is over. 0: it is none of ours, or was answered."""
        try:
            raw = from_base64url(nonce)
        except ValueError:
            return 0.0
        said, mark = raw[: _NONCE_BYTES + _TIME_BYTES], raw[_NONCE_BYTES + _TIME_BYTES :]
        if nonce in self._answered or not hmac.compare_digest(mark, self._mark(said)):
            return 0.0
        return int.from_bytes(said[_NONCE_BYTES:], "big") / 1000

    async def admit(self, nonce: str, proof: str) -> str:
        """A session for the operator who answered the question. Raises InterlockError."""
        over = InterlockError(PROOF_INVALID, "This question is no longer open: ask again.")
        if self._clock() >= self._open_until(nonce) or self.proofs is None:
            raise over
        about = _inbox(self._audience(), nonce)
        verdict = await self.proofs.judge(about, proof, self._now)
        if verdict.decision != APPROVE:
            raise InterlockError(PROOF_INVALID, "The operator did not want to be let in.")
        ends = self._open_until(nonce)
        if self._clock() >= ends:
            # Somebody was let in by the same answer meanwhile, or it took too long.
            raise over
        self._forget_answered()
        self._answered[nonce] = ends
        session = secrets.token_urlsafe(32)
        kept = (verdict.anchor, self._clock() + SESSION_SECONDS)
        _remember(self._sessions, sha256(session.encode()).digest(), kept)
        return session

    def known(self, session: str) -> str:
        """Whose session it is. Raises InterlockError."""
        name, ends = self._sessions.get(sha256(session.encode()).digest(), ("", 0.0))
        still = self.proofs is not None and bool(self.proofs.anchors.named(name))
        if self._clock() >= ends or not still:
            raise InterlockError(UNAUTHENTICATED, "Sign again: that was too long ago.")
        return name

    def left(self, session: str) -> float:
        """For how many seconds a session is still good."""
        _, ends = self._sessions.get(sha256(session.encode()).digest(), ("", 0.0))
        return max(0.0, ends - self._clock())

    async def look_again(self) -> None:
        """Heed who was enrolled or removed meanwhile."""
        await self.watch.look()

    def _forget_answered(self) -> None:
        """Those that are over cannot be answered again anyway."""
        now = self._clock()
        self._answered = OrderedDict(
            (nonce, ends) for nonce, ends in self._answered.items() if now < ends
        )


def enrolled_key(source: bytes | str | dict[str, Any], invitation: Invitation) -> Enrolled:
    """A public key (PEM or JWK) as something to enrol. Raises InterlockError."""
    key, algorithms = public_key(source, invitation.name)
    return Enrolled(
        id=thumbprint(key),
        name=invitation.name,
        kind="key",
        algorithm=algorithms[0],
        public=key.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        tools=invitation.tools,
        caller=invitation.caller,
    )


def _inbox(audience: str, nonce: str) -> Approval:
    """What is signed to see everything: it has the form of an approval, and nobody waits for it."""
    return Approval(
        id=INBOX,
        audience=audience,
        nonce=nonce,
        caller=Caller(""),
        client=Client(Era.STATELESS, LATEST_STATELESS),
        face="",
        name="",
        tool="",
        upstream="",
        route=(),
        arguments=b"",
        shown=b"{}",
        capability=b"{}",
        effect="",
        description="",
        digest=nonce,
        contract="",
        policy="",
        rule="",
        action=VERIFY,
        reason="",
        created=0.0,
        expires=0.0,
    )


def _remember(kept: OrderedDict[Any, T], key: Any, value: T) -> None:
    kept[key] = value
    if len(kept) > _MOST:
        kept.popitem(last=False)
