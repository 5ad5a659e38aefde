"""The people who confirm calls: where they enrol, how they show who they are, and where the page
is that they use."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.call import Caller, Client
from interlock.config import Config
from interlock.errors import INVALID_REQUEST, PROOF_INVALID, UNAUTHENTICATED, InterlockError
from interlock.node.places import state_dir
from interlock.pipeline.approval.anchors import Anchor, public_key
from interlock.pipeline.approval.passkeys import Creation, PasskeyChecker
from interlock.pipeline.approval.proofs import APPROVE, PASSKEY, Proofs
from interlock.pipeline.approval.record import VERIFY, Approval
from interlock.protocol.mcp import LATEST_STATELESS, Era
from interlock.stores.operators import Enrolled, Invitation, OperatorStore

INBOX: Final = "inbox"
"""What an operator signs about who wants to see all that waits."""
SESSION_SECONDS: Final = 900.0
QUESTION_SECONDS: Final = 120.0
_MOST: Final = 1_000
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_EVERYWHERE: Final = ("0.0.0.0", "::")
T = TypeVar("T")


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
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`origins`: of the approval page. `audience`: the id of this node."""
        self.store = store
        self.passkeys = PasskeyChecker(find=store.passkey, used=store.used, origins=origins)
        self.proofs: Proofs | None = None
        """Set by the node: what looks at every proof."""
        self._audience = audience
        self._clock = clock
        self._now = wall_clock
        self._questions: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def anchors(self) -> Iterator[Anchor]:
        """Everybody who is enrolled. A passkey signs in its own way: its anchor has no key, and
        says only whose it is and what that one may confirm. Raises InterlockError."""
        from joserfc.jwk import ECKey, OKPKey

        for one in self.store.all():
            if one.kind == "passkey":
                yield Anchor(one.name, PASSKEY, tools=one.tools, caller=one.caller)
                continue
            kind = OKPKey if one.algorithm == "EdDSA" else ECKey
            names = ("EdDSA", "Ed25519") if one.algorithm == "EdDSA" else (one.algorithm,)
            key = kind.import_key(one.public)
            yield Anchor(one.name, key=key, algorithms=names, tools=one.tools, caller=one.caller)

    # -- enrolment

    def enrol(self, asked: bytes) -> str:
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

        if request.key is None and request.passkey is None:
            invitation = self.store.invited(request.code)
            name = None if invitation is None else invitation.name
        else:
            one = self.store.redeem(request.code, make)
            name = None if one is None else one.name
            self.look_again()
        if name is None:
            raise InterlockError(
                PROOF_INVALID,
                "This code is not good, or no longer: `interlock keys enrol NAME` gives a new one.",
            )
        return name

    # -- sessions

    def question(self) -> dict[str, str]:
        """What an operator signs to see what waits."""
        nonce = secrets.token_urlsafe(24)
        _remember(self._questions, nonce, self._clock() + QUESTION_SECONDS)
        return {"nonce": nonce, "aud": self._audience()}

    def admit(self, nonce: str, proof: str) -> str:
        """A session for the operator who answered the question. Raises InterlockError."""
        ends = self._questions.pop(nonce, 0.0)
        if self._clock() >= ends or self.proofs is None:
            raise InterlockError(PROOF_INVALID, "This question is no longer open: ask again.")
        self.look_again()
        about = _inbox(self._audience(), nonce)
        verdict = self.proofs.check(about, proof, self._now())
        if verdict.decision != APPROVE:
            raise InterlockError(PROOF_INVALID, "The operator did not want to be let in.")
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

    def look_again(self) -> None:
        """Heed who was enrolled or removed meanwhile. Raises InterlockError."""
        if self.proofs is not None:
            self.proofs.anchors.reload()


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
