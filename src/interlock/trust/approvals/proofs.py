"""Is this a proof? What somebody outside the calling model says about exactly one approval.

A proof is a compact JWS whose claims name this node (`aud`), the approval (`jti`), what would be
called (`args_sha256`), until when it holds (`exp`) and what was decided (`decision`). It is held
against the trust anchors, and against the approval. Other kinds can be registered by the word that
they begin with; passkeys are one. Nothing that a caller gets to see is a proof of anything.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import re
import warnings
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from interlock.core.config import resolve
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig
from interlock.errors import CONFIG, FORBIDDEN, PROOF_INVALID, InterlockError
from interlock.trust.approvals.record import VERIFY, Approval

# -- Whose proofs count: public keys of people and policy engines, secrets shared with services.
#
# They come from the config and from whoever enrolled with this node. A key that cannot be read is
# said when the config is, not when somebody waits.

OPERATOR: Final = "operator"
POLICY_ENGINE: Final = "policy_engine"
SERVICE: Final = "service"
SHORTEST_SECRET: Final = 32
"""Bytes: what signs with fewer can be guessed."""
_MOST_KEY: Final = 64 * 1024


class Anchor(msgspec.Struct, frozen=True):
    """Somebody whose proofs count."""

    name: str
    kind: str = OPERATOR
    key: Any = None
    """The public key (joserfc), or the shared secret."""
    algorithms: tuple[str, ...] = ()
    """The only ones that its proofs may be signed with."""
    tools: tuple[str, ...] = ()
    """Globs of tools that it may confirm. Empty: all."""
    caller: str = ""
    """Which caller that is, if it is one."""

    def __repr__(self) -> str:
        return f"Anchor({self.name}, {self.kind})"

    def may_confirm(self, tool: str) -> bool:
        return not self.tools or any(fnmatchcase(tool, glob) for glob in self.tools)

    def is_caller(self, *names: str) -> bool:
        """Whether one of these callers is the one whose anchor this is."""
        return any(name and name in (self.name, self.caller) for name in names)


class Anchors:
    """All of them. `reload` when the config changed or somebody enrolled."""

    def __init__(
        self,
        config: ApprovalsConfig,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        enrolled: Callable[[], Iterable[Anchor]] = tuple,
    ) -> None:
        """`enrolled`: those who did so with this node. Raises InterlockError for a bad key."""
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._enrolled = enrolled
        self._configured: tuple[Anchor, ...] = ()
        self.all: tuple[Anchor, ...] = ()
        """Those of the config, and those who are enrolled now."""
        self._stamp: tuple[object, ...] = ()
        self.reload()

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def configured(self) -> tuple[Anchor, ...]:
        """Those that the config names."""
        return self._configured

    def named(self, name: str) -> list[Anchor]:
        """The keys of one person or program."""
        return [one for one in self.all if one.name == name]

    def configure(self, config: ApprovalsConfig) -> None:
        """Raises InterlockError, and changes nothing, when a key of it cannot be used."""
        stamp, found = self._stamped(config), self._read(config)
        self._config, self._stamp, self._configured = config, stamp, found
        self.refresh()

    def reload(self) -> None:
        """Read every key again, and ask who is enrolled. Raises InterlockError."""
        self._stamp = self._stamped(self._config)
        self._configured = self._read(self._config)
        self.refresh()

    def changed(self) -> Callable[[], None] | None:
        """Read the key files again if they are others than before. It waits for the disk, and may
        be called on any thread. Returns what makes that count, which is for the event loop; None:
        nothing changed. Raises InterlockError, and changes nothing, for a bad key."""
        config = self._config
        stamp = self._stamped(config)
        if stamp == self._stamp:
            return None
        found = self._read(config)

        def take() -> None:
            if self._config is config:
                self._stamp, self._configured = stamp, found
                self.refresh()

        return take

    def refresh(self) -> None:
        """Count those who are enrolled now, beside those of the config. Reads no file."""
        enrolled = tuple(self._enrolled()) if self._config.enrolled else ()
        self.all = (*self._configured, *enrolled)

    def _read(self, config: ApprovalsConfig) -> tuple[Anchor, ...]:
        found = tuple(
            read_anchor(one, environ=self._environ, base_dir=self._base_dir)
            for one in config.anchors
        )
        names = Counter(one.name for one in found)
        twice = next((name for name, times in names.items() if times > 1), None)
        if twice is not None:
            raise InterlockError(
                CONFIG, f"Two trust anchors are called {twice!r}: give each a name of its own."
            )
        return found

    def _stamped(self, config: ApprovalsConfig) -> tuple[object, ...]:
        """By what one sees whether a key file is another one."""
        stamps: list[object] = []
        for one in config.anchors:
            if one.key is not None:
                try:
                    status = _key_path(one.key, self._base_dir).stat()
                except OSError as error:
                    stamps.append(error.errno)
                else:
                    stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(stamps)


def must_have_anchors(config: ApprovalsConfig, *, gates: bool) -> None:
    """Raises InterlockError for a config that stops calls which nobody could ever confirm."""
    if gates and not config.anchors and not config.enrolled:
        raise InterlockError(
            CONFIG,
            "The policy makes calls wait for a human, and nobody's proof counts: name one under "
            "`approvals.anchors`, or set `approvals.enrolled: true` and run `interlock keys new`.",
        )


def read_anchor(config: AnchorConfig, *, environ: Mapping[str, str], base_dir: Path) -> Anchor:
    """An anchor of the config. Raises InterlockError."""
    given: dict[str, Any] = {
        "name": config.name,
        "kind": config.kind,
        "tools": tuple(config.tools),
        "caller": config.caller or "",
    }
    if (config.key is None) == (config.secret is None):
        raise _bad(config.name, "needs a `key` or, if it is a service, a `secret`: one of them")
    if config.secret is not None:
        if config.kind != SERVICE:
            raise _bad(config.name, "may not have a `secret`: only a service shares one")
        secret = resolve(config.secret, environ=environ, base_dir=base_dir).encode()
        if len(secret) < SHORTEST_SECRET:
            raise _bad(config.name, f"has a secret of fewer than {SHORTEST_SECRET} bytes")
        from joserfc.jwk import OctKey

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Anchor(key=OctKey.import_key(secret), algorithms=("HS256",), **given)
    assert config.key is not None
    path = _key_path(config.key, base_dir)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_KEY)
    except OSError as error:
        raise _bad(config.name, f"has a key that cannot be read ({error.strerror})") from None
    key, algorithms = public_key(text, config.name)
    return Anchor(key=key, algorithms=algorithms, **given)


def _key_path(key: str, base_dir: Path) -> Path:
    return base_dir / Path(key).expanduser()


def public_key(text: bytes | str | dict[str, Any], name: str) -> tuple[Any, tuple[str, ...]]:
    """A public key (PEM, or a JWK as text or members) and how it signs. Raises InterlockError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey

    source: Any = text
    if isinstance(text, bytes | str) and text.strip()[:1] in (b"{", "{"):
        try:
            source = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _bad(name, "has a key that is no JWK") from None
    algorithms = {"Ed25519": ("EdDSA", "Ed25519"), "P-256": ("ES256",)}
    for kind in (OKPKey, ECKey):
        try:
            key = kind.import_key(source)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        except Exception as wrong:
            # The library lets exceptions of the parser below it through.
            raise _bad(name, f"has a key that cannot be read ({type(wrong).__name__})") from None
        if key.curve_name in algorithms:
            public = kind.import_key(key.as_dict(private=False))
            return public, algorithms[key.curve_name]
    raise _bad(name, "needs an Ed25519 or P-256 public key, as PEM or JWK")


def _bad(name: str, why: str) -> InterlockError:
    return InterlockError(CONFIG, f"The trust anchor {name!r} {why}.")


APPROVE: Final = "approve"
REFUSE: Final = "refuse"
PASSKEY: Final = "passkey"
LONGEST_AHEAD: Final = 15 * 60.0
"""A proof that holds for longer is none: it could be kept for a rainy day."""
LEEWAY: Final = 60.0
"""So much may two clocks differ, where that lets nobody use a proof for longer."""
MOST_PROOF: Final = 16 * 1024
_MOST_REASON: Final = 500
_MOST_TOKEN: Final = 200
_ALGORITHMS: Final = frozenset({"EdDSA", "Ed25519", "ES256", "HS256"})


class ProofVerdict(msgspec.Struct, frozen=True):
    """What a proof says, once it is believed."""

    anchor: str
    kind: str
    """`operator`, `policy_engine`, `service` or `passkey`."""
    decision: str
    reason: str = ""
    token: str = ""
    """A service's one-time token, which is used with this."""
    used: Callable[[], bool] | None = None
    """Writes down that it was used, and waits for the disk. False: it does not count after all."""


async def _as_it_is() -> None:
    """Nobody enrols, and nobody is removed."""


Checker = Callable[[Approval, str, float], ProofVerdict]
"""Takes the approval, the proof and the wall clock's time. Raises InterlockError."""


class Proofs:
    """Looks at proofs of every kind."""

    def __init__(self, anchors: Anchors) -> None:
        self.anchors = anchors
        self.look: Callable[[], Awaitable[None]] = _as_it_is
        """Sees who was enrolled or removed meanwhile. Set by the node."""
        self._checkers: dict[str, Checker] = {}

    def register(self, kind: str, checker: Checker) -> None:
        """Have proofs that begin with `kind:` looked at by somebody else."""
        self._checkers[kind] = checker

    async def judge(
        self, approval: Approval, proof: str, wall_clock: Callable[[], float]
    ) -> ProofVerdict:
        """What a proof says that counts from now on. The one way to act on a proof, wherever it
        came in: whoever was removed a moment ago counts no more. Raises InterlockError."""
        await self.look()
        verdict = self.check(approval, proof, wall_clock())
        if verdict.used is not None:
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(None, verdict.used):
                raise invalid("it was used elsewhere meanwhile: it may have been copied")
        return verdict

    def check(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        """Raises InterlockError unless it is a proof about this approval, by those who are known
        here and now. Nothing is used up by that: see `judge`."""
        if not isinstance(proof, str) or not proof:
            raise invalid("there is none: a human's signature is needed")
        if len(proof) > MOST_PROOF:
            raise invalid("it is too long")
        kind, colon, rest = proof.partition(":")
        if colon:
            checker = self._checkers.get(kind)
            if checker is None:
                raise invalid("it is of no kind that is known here")
            verdict = checker(approval, rest, now)
        else:
            verdict = self._signed(approval, proof, now)
        self._must_fit(approval, verdict)
        return verdict

    def _must_fit(self, approval: Approval, verdict: ProofVerdict) -> None:
        """What holds for every kind of proof. Raises InterlockError."""
        caller = approval.caller
        # One person may have several keys: what is said of any of them holds for the person.
        named = [one for one in self.anchors.all if one.name == verdict.anchor]
        known = named or [Anchor(verdict.anchor, verdict.kind)]
        if any(one.is_caller(caller.name, caller.parent_caller) for one in known):
            raise InterlockError(
                FORBIDDEN, f"{verdict.anchor} asked for this call, and cannot confirm it as well."
            )
        if not all(one.may_confirm(approval.tool) for one in known):
            raise invalid(f"{verdict.anchor} may not confirm calls of {approval.tool}")
        if approval.action == VERIFY and verdict.kind not in (OPERATOR, PASSKEY):
            raise invalid("this call must be verified by a human's own key or passkey")
        if verdict.decision not in (APPROVE, REFUSE):
            raise invalid("its `decision` is neither `approve` nor `refuse`")

    # -- signatures

    def _signed(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        header = jws_header(proof)
        anchor, payload = self._believed(proof, header)
        try:
            claims = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise invalid("its claims are no JSON object")
        _check_claims(approval, claims, now)
        token = ""
        if anchor.kind == POLICY_ENGINE and claims.get("nonce") != approval.nonce:
            raise invalid("its `nonce` is not that of the approval")
        if anchor.kind == SERVICE:
            given = claims.get("token_id")
            if not isinstance(given, str) or not 1 <= len(given) <= _MOST_TOKEN:
                raise invalid("a service's proof needs a `token_id` of its own")
            token = given
        reason = claims.get("reason")
        return ProofVerdict(
            anchor.name,
            anchor.kind,
            claims["decision"],
            reason[:_MOST_REASON] if isinstance(reason, str) else "",
            token,
        )

    def _believed(self, proof: str, header: dict[str, Any]) -> tuple[Anchor, bytes]:
        """Whose signature it is, and what is signed. Raises InterlockError."""
        algorithm, kid = header["alg"], header.get("kid")
        fitting = [one for one in self.anchors.all if algorithm in one.algorithms]
        if kid is not None:
            # A hint only: it says where to look first, and proves nothing.
            fitting.sort(key=lambda one: one.name != kid)
        for anchor in fitting:
            payload = verified_by(proof, anchor.key, algorithm)
            if payload is not None:
                return anchor, payload
        raise invalid("no trust anchor of this node signed it")


def invalid(why: str) -> InterlockError:
    """The error for a proof that is none."""
    return InterlockError(PROOF_INVALID, f"This proof does not count: {why}.")


def jws_header(proof: str) -> dict[str, Any]:
    """The protected header, of which nothing is believed yet. Raises InterlockError."""
    parts = proof.split(".")
    if len(parts) != 3 or not all(parts):
        raise invalid("it is not a compact JWS of three parts")
    try:
        raw = urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4))
        header = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise invalid("its header cannot be read")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise invalid("its `alg` is not EdDSA, ES256 or, for a service, HS256")
    if "crit" in header or "b64" in header:
        raise invalid("its header asks for what is not known here")
    return header


def verified_by(proof: str, key: Any, algorithm: str) -> bytes | None:
    """What was signed with this key (joserfc). None: nothing was."""
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # Its name for Ed25519 is an old one; it is what everybody writes.
            warnings.simplefilter("ignore")
            return jws.deserialize_compact(proof, key, algorithms=[algorithm]).payload
    except (JoseError, ValueError, TypeError):
        return None


def _check_claims(approval: Approval, claims: dict[str, Any], now: float) -> None:
    """Raises InterlockError."""
    audience = claims.get("aud")
    if audience != approval.audience and audience != [approval.audience]:
        raise invalid("its `aud` is not this node")
    if claims.get("jti") != approval.id:
        raise invalid("it is about another approval (`jti`)")
    if claims.get("args_sha256") != approval.digest:
        raise invalid("it is about another call (`args_sha256`)")
    if claims.get("decision") not in (APPROVE, REFUSE):
        raise invalid("its `decision` is neither `approve` nor `refuse`")
    expires, issued = _time(claims.get("exp")), _time(claims.get("iat"))
    if expires is None or issued is None:
        raise invalid("it does not say when it was made and until when it holds (`iat`, `exp`)")
    not_before = _time(claims.get("nbf", issued))
    if now >= expires:
        raise invalid("it has expired (`exp`)")
    if expires > now + LONGEST_AHEAD + LEEWAY or expires - issued > LONGEST_AHEAD + LEEWAY:
        raise invalid("it holds for longer than 15 minutes (`exp`)")
    if issued > now + LEEWAY or not_before is None or not_before > now + LEEWAY:
        raise invalid("it is of the future (`iat`, `nbf`)")


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


# -- Passkeys: is this a WebAuthn answer to exactly this question, by somebody who was enrolled?
#
# Pure checking with `cryptography`: who is enrolled, and how often a passkey was used, is asked of
# whoever keeps that. What a passkey signs is bound to one approval, its digest, the decision and
# the reason, so it is of no use for anything else.

PREFIX: Final = f"{PASSKEY}:"
"""What a proof that a passkey made begins with; base64url of JSON follows."""

Decision = Literal["approve", "refuse"]

ES256: Final = -7
EDDSA: Final = -8
RS256: Final = -257
ALGORITHMS: Final = (EDDSA, ES256, RS256)
"""The COSE numbers of what is accepted, best first."""

LONGEST_PROOF: Final = 16 * 1024
_LEAST_RSA_BITS: Final = 2048
_PRESENT: Final = 0x01
_VERIFIED: Final = 0x04
_BACKUP_ELIGIBLE: Final = 0x08
_BACKED_UP: Final = 0x10
_HAS_CREDENTIAL: Final = 0x40
_HEAD: Final = 37
"""The digest of the relying party's name, the flags and the counter."""
_AAGUID: Final = 16
_LONGEST_ID: Final = 1023
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")


class Passkey(msgspec.Struct, frozen=True):
    """One that was enrolled: whose it is, and what of it is needed to check a signature."""

    name: str
    """The operator."""
    id: bytes
    """The credential id."""
    public: bytes
    """The public key (SubjectPublicKeyInfo, DER)."""
    algorithm: int
    rp_id: str
    """The host of the pages that may use it."""
    counter: int = 0
    tools: tuple[str, ...] = ()
    """Globs of tools it may confirm. Empty: all."""
    caller: str = ""
    """Which caller its owner is, if it is one."""


class PasskeyVerdict(NamedTuple):
    """The decision about an approval that a passkey signed."""

    passkey: Passkey
    decision: Decision
    reason: str
    counter: int | None = None
    """How often it was used by now, to be written down before this counts. None: it does not
    count, as those that are synced between devices."""


class _Assertion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page sends of `navigator.credentials.get`; binary members are base64url."""

    id: str
    client_data: str
    authenticator_data: str
    signature: str
    decision: Decision
    reason: str = ""


class PasskeyCreation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page sends of `navigator.credentials.create`; binary members are base64url."""

    client_data: str
    authenticator_data: str
    public_key: str
    algorithm: int


class _ClientData(msgspec.Struct, frozen=True):
    type: str
    challenge: str
    origin: str
    crossOrigin: bool = False
    topOrigin: str | None = None


class _Authenticator(NamedTuple):
    rp_digest: bytes
    flags: int
    counter: int
    rest: bytes


def challenge(audience: str, id: str, digest: str, decision: str, reason: str) -> bytes:
    """What a passkey signs for a decision. None but the reason, the last, can hold a newline."""
    parts = ("interlock-approval-1", audience, id, digest, decision, reason)
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).digest()


def enrolment_challenge(code: str) -> bytes:
    """What a new passkey is made for."""
    return sha256(f"interlock-enrolment-1\n{plain_code(code)}".encode()).digest()


def plain_code(code: str) -> str:
    """An enrolment code as it was made, however it was typed."""
    return "".join(one for one in code.upper() if one.isascii() and one.isalnum())


class PasskeyChecker:
    """Checks proofs that passkeys made."""

    def __init__(
        self,
        *,
        find: Callable[[bytes], Passkey | None],
        used: Callable[[bytes, int], bool],
        origins: Callable[[], Collection[str]],
    ) -> None:
        """`find` reads no file. `used` takes a passkey's id and its new counter, writes that down
        and says whether it is new; it waits for the disk. `origins`: where the approval page is."""
        self._find = find
        self._used = used
        self._origins = origins

    def __call__(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        """What the proof, without its prefix, says of an approval. Raises PROOF_INVALID."""
        said = self.check(approval.audience, approval.id, approval.digest, proof)
        passkey, counter = said.passkey, said.counter
        used = None if counter is None else lambda: self._used(passkey.id, counter)
        return ProofVerdict(passkey.name, PASSKEY, said.decision, said.reason, used=used)

    def check(self, audience: str, id: str, digest: str, proof: str) -> PasskeyVerdict:
        """What the proof says of the approval `id` of that node. Raises PROOF_INVALID."""
        if len(proof) > LONGEST_PROOF:
            _refuse("The proof is too long.")
        try:
            raw = from_base64url(proof.removeprefix(PREFIX))
            assertion = msgspec.json.decode(raw, type=_Assertion)
            credential = from_base64url(assertion.id)
            client_data = from_base64url(assertion.client_data)
            authenticator_data = from_base64url(assertion.authenticator_data)
            signature = from_base64url(assertion.signature)
        except (ValueError, msgspec.MsgspecError):
            _refuse("The proof is not what a passkey makes.")
        passkey = self._find(credential)
        if passkey is None:
            _refuse("This passkey is not enrolled here.")
        expected = challenge(audience, id, digest, assertion.decision, assertion.reason)
        self._client(client_data, "webauthn.get", expected, passkey.rp_id)
        seen = _authenticator(authenticator_data, passkey.rp_id)
        signed = authenticator_data + sha256(client_data).digest()
        if not _signed_by(passkey.public, passkey.algorithm, signature, signed):
            _refuse("The signature is not this passkey's.")
        # Passkeys that are synced between devices do not count.
        counts = bool(seen.counter or passkey.counter)
        if counts and seen.counter <= passkey.counter:
            _refuse("This passkey was used elsewhere meanwhile: it may have been copied.")
        return PasskeyVerdict(
            passkey, assertion.decision, assertion.reason, seen.counter if counts else None
        )

    def enrolled(self, created: PasskeyCreation, code: str, name: str) -> Passkey:
        """The passkey that a page made with this enrolment code. Raises PROOF_INVALID."""
        try:
            client_data = from_base64url(created.client_data)
            authenticator_data = from_base64url(created.authenticator_data)
            public = from_base64url(created.public_key)
        except ValueError:
            _refuse("That is not what a browser makes for a new passkey.")
        origin = self._client(client_data, "webauthn.create", enrolment_challenge(code), None)
        rp_id = urlsplit(origin).hostname or ""
        seen = _authenticator(authenticator_data, rp_id)
        size = int.from_bytes(seen.rest[_AAGUID : _AAGUID + 2], "big")
        credential = seen.rest[_AAGUID + 2 : _AAGUID + 2 + size]
        if not seen.flags & _HAS_CREDENTIAL or not 0 < size <= _LONGEST_ID:
            _refuse("The authenticator made no passkey.")
        if len(credential) != size:
            _refuse("The authenticator's data is cut off.")
        if not _usable(public, created.algorithm):
            _refuse("The passkey's algorithm is not one of ES256, EdDSA and RS256.")
        return Passkey(name, credential, public, created.algorithm, rp_id, seen.counter)

    def _client(self, raw: bytes, type: str, expected: bytes, rp_id: str | None) -> str:
        """Check what the browser says of itself; returns the page's origin."""
        try:
            data = msgspec.json.decode(raw, type=_ClientData)
            answered = from_base64url(data.challenge)
        except (ValueError, msgspec.MsgspecError):
            _refuse("The browser's part of the proof cannot be read.")
        if data.type != type:
            _refuse("The passkey was used for something else.")
        if not hmac.compare_digest(answered, expected):
            _refuse("The passkey answered another question than this one.")
        if data.origin not in self._origins() or data.crossOrigin or data.topOrigin is not None:
            _refuse("The passkey was used on another page than this node's.")
        if rp_id is not None and urlsplit(data.origin).hostname != rp_id:
            _refuse("The passkey belongs to another host.")
        return data.origin


def to_base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Raises ValueError for anything but base64url without padding."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    padded = text + "=" * (-len(text) % 4)
    try:
        data = b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if to_base64url(data) != text:
        # The same bytes must not have two spellings.
        raise ValueError("not canonical base64url")
    return data


def _authenticator(data: bytes, rp_id: str) -> _Authenticator:
    if len(data) < _HEAD:
        _refuse("The authenticator's data is cut off.")
    flags = data[32]
    if not hmac.compare_digest(data[:32], sha256(rp_id.encode()).digest()):
        _refuse("The passkey belongs to another host.")
    if not flags & _PRESENT or not flags & _VERIFIED:
        _refuse("The passkey did not make sure that its owner is there.")
    if flags & _BACKED_UP and not flags & _BACKUP_ELIGIBLE:
        _refuse("The authenticator contradicts itself.")
    return _Authenticator(data[:32], flags, int.from_bytes(data[33:37], "big"), data[_HEAD:])


def _usable(public: bytes, algorithm: int) -> bool:
    try:
        key = load_der_public_key(public)
    except (ValueError, UnsupportedAlgorithm):
        return False
    if algorithm == ES256:
        return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if algorithm == EDDSA:
        return isinstance(key, ed25519.Ed25519PublicKey)
    if algorithm == RS256:
        return isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS
    return False


def _signed_by(public: bytes, algorithm: int, signature: bytes, data: bytes) -> bool:
    if not _usable(public, algorithm):
        return False
    key = load_der_public_key(public)
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise InterlockError(PROOF_INVALID, why)
