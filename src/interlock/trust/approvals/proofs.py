"""Proofs: signed decisions about one approval by a trust anchor, never by the calling model.

A proof is a compact JWS. Its claims name this node (`aud`), the approval (`jti`), the call
(`args_sha256`), its end (`exp`) and the decision (`decision`). It is verified against the trust
anchors and compared with the approval. Other kinds of proofs can be registered by a prefix;
passkeys are one. Nothing that a caller can see proves anything (MCP-AX §11.3).
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

# -- Trust anchors: public keys of operators and policy engines, secrets shared with services.
#
# They come from the config and from operators who enrolled at this node. An unreadable key is an
# error when the config is read, not when a proof arrives.

OPERATOR: Final = "operator"
POLICY_ENGINE: Final = "policy_engine"
SERVICE: Final = "service"
MIN_SECRET_BYTES: Final = 32
"""A shorter secret can be guessed."""
_MAX_KEY_FILE_BYTES: Final = 64 * 1024


class Anchor(msgspec.Struct, frozen=True):
    """A person, policy engine or service whose proofs count."""

    name: str
    kind: str = OPERATOR
    key: Any = None
    """The public key (joserfc), or the shared secret."""
    algorithms: tuple[str, ...] = ()
    """The algorithms that its proofs may be signed with."""
    tools: tuple[str, ...] = ()
    """Globs of the tools that it may approve. Empty: all."""
    caller: str = ""
    """The name of the caller that this anchor is, if it is one."""

    def __repr__(self) -> str:
        return f"Anchor({self.name}, {self.kind})"

    def may_approve(self, tool: str) -> bool:
        return not self.tools or any(fnmatchcase(tool, glob) for glob in self.tools)

    def is_caller(self, *names: str) -> bool:
        """Return whether one of these names is the caller that this anchor is."""
        return any(name and name in (self.name, self.caller) for name in names)


class Anchors:
    """All trust anchors of a node. Call `reload` after a change of the config, or an enrolment."""

    def __init__(
        self,
        config: ApprovalsConfig,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        enrolled: Callable[[], Iterable[Anchor]] = tuple,
    ) -> None:
        """Args:
        enrolled: returns the anchors of operators who enrolled at this node.

        Raises InterlockError for an unusable key.
        """
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._enrolled = enrolled
        self._configured: tuple[Anchor, ...] = ()
        self.all: tuple[Anchor, ...] = ()
        """The anchors of the config, and of operators who are enrolled now."""
        self._file_states: tuple[object, ...] = ()
        self.reload()

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def configured(self) -> tuple[Anchor, ...]:
        """The anchors of the config."""
        return self._configured

    def find(self, name: str) -> list[Anchor]:
        """Return the anchors (keys) of one person or program."""
        return [anchor for anchor in self.all if anchor.name == name]

    def configure(self, config: ApprovalsConfig) -> None:
        """Use a new config. Raises InterlockError, and changes nothing, for an unusable key."""
        file_states, configured = self._read_file_states(config), self._read(config)
        self._config, self._file_states, self._configured = config, file_states, configured
        self.refresh()

    def reload(self) -> None:
        """Read all keys and enrolments again. Raises InterlockError."""
        self._file_states = self._read_file_states(self._config)
        self._configured = self._read(self._config)
        self.refresh()

    def read_changes(self) -> Callable[[], None] | None:
        """Read the key files again if they changed.

        It waits for the disk; any thread may call it. Returns a function that applies the change
        and must run on the event loop. None: nothing changed. Raises InterlockError, and changes
        nothing, for an unusable key.
        """
        config = self._config
        file_states = self._read_file_states(config)
        if file_states == self._file_states:
            return None
        configured = self._read(config)

        def apply() -> None:
            if self._config is config:
                self._file_states, self._configured = file_states, configured
                self.refresh()

        return apply

    def refresh(self) -> None:
        """Read the enrolled operators again. Reads no file."""
        enrolled = tuple(self._enrolled()) if self._config.enrolled else ()
        self.all = (*self._configured, *enrolled)

    def _read(self, config: ApprovalsConfig) -> tuple[Anchor, ...]:
        anchors = tuple(
            read_anchor(anchor, environ=self._environ, base_dir=self._base_dir)
            for anchor in config.anchors
        )
        counts = Counter(anchor.name for anchor in anchors)
        duplicate = next((name for name, count in counts.items() if count > 1), None)
        if duplicate is not None:
            raise InterlockError(
                CONFIG,
                f"`approvals.anchors`: two trust anchors are called {duplicate!r}. Give each of "
                "them its own name.",
            )
        return anchors

    def _read_file_states(self, config: ApprovalsConfig) -> tuple[object, ...]:
        """Return values that change when a key file changes."""
        states: list[object] = []
        for anchor in config.anchors:
            if anchor.key is not None:
                try:
                    status = _key_path(anchor.key, self._base_dir).stat()
                except OSError as error:
                    states.append(error.errno)
                else:
                    states.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(states)


def check_has_anchors(config: ApprovalsConfig, *, gates: bool) -> None:
    """Raise InterlockError for a config that requires approvals which no operator could ever
    give.

    Args:
        gates: whether a rule of the config holds calls.
    """
    if gates and not config.anchors and not config.enrolled:
        raise InterlockError(
            CONFIG,
            "The policy requires approvals, but there is no trust anchor. Name an anchor under "
            "`approvals.anchors`, or set `approvals.enrolled: true` and run `interlock keys new`.",
        )


def read_anchor(config: AnchorConfig, *, environ: Mapping[str, str], base_dir: Path) -> Anchor:
    """Read an anchor of the config. Raises InterlockError."""
    fields: dict[str, Any] = {
        "name": config.name,
        "kind": config.kind,
        "tools": tuple(config.tools),
        "caller": config.caller or "",
    }
    if (config.key is None) == (config.secret is None):
        raise _anchor_error(
            config.name, "needs a `key` or, for a service, a `secret`, but not both"
        )
    if config.secret is not None:
        if config.kind != SERVICE:
            raise _anchor_error(config.name, "has a `secret`, which only a service may have")
        secret = resolve(config.secret, environ=environ, base_dir=base_dir).encode()
        if len(secret) < MIN_SECRET_BYTES:
            raise _anchor_error(config.name, f"has a secret of fewer than {MIN_SECRET_BYTES} bytes")
        from joserfc.jwk import OctKey

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Anchor(key=OctKey.import_key(secret), algorithms=("HS256",), **fields)
    assert config.key is not None
    path = _key_path(config.key, base_dir)
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise _anchor_error(
            config.name, f"has a key that cannot be read ({error.strerror})"
        ) from None
    key, algorithms = read_public_key(text, config.name)
    return Anchor(key=key, algorithms=algorithms, **fields)


def _key_path(key: str, base_dir: Path) -> Path:
    return base_dir / Path(key).expanduser()


def read_public_key(text: bytes | str | dict[str, Any], name: str) -> tuple[Any, tuple[str, ...]]:
    """Read a public key (PEM, or a JWK as text or members) and return it with its algorithms.

    Args:
        name: the name of the anchor, for the error.

    Raises InterlockError.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey

    source: Any = text
    if isinstance(text, bytes | str) and text.strip()[:1] in (b"{", "{"):
        try:
            source = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _anchor_error(name, "has a key that is no valid JWK") from None
    algorithms = {"Ed25519": ("EdDSA", "Ed25519"), "P-256": ("ES256",)}
    for kind in (OKPKey, ECKey):
        try:
            key = kind.import_key(source)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        except Exception as error:
            # joserfc lets exceptions of its parser through.
            reason = f"has a key that cannot be read ({type(error).__name__})"
            raise _anchor_error(name, reason) from None
        if key.curve_name in algorithms:
            public = kind.import_key(key.as_dict(private=False))
            return public, algorithms[key.curve_name]
    raise _anchor_error(name, "needs an Ed25519 or P-256 public key, as PEM or JWK")


def is_private_key(text: bytes) -> bool:
    """Return whether the text of a key file (PEM or JWK) has a private key."""
    if b"PRIVATE KEY-----" in text:
        return True
    try:
        return "d" in msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _anchor_error(name: str, reason: str) -> InterlockError:
    return InterlockError(CONFIG, f"The trust anchor {name!r} {reason}.")


APPROVE: Final = "approve"
REFUSE: Final = "refuse"
PASSKEY: Final = "passkey"
MAX_PROOF_SECONDS: Final = 15 * 60.0
"""The longest validity of a proof: a proof must not be stored for later use."""
LEEWAY_SECONDS: Final = 60.0
"""The maximum difference of two clocks, where that does not extend a proof."""
MAX_PROOF_BYTES: Final = 16 * 1024
_MAX_REASON_LENGTH: Final = 500
_MAX_TOKEN_LENGTH: Final = 200
_ALGORITHMS: Final = frozenset({"EdDSA", "Ed25519", "ES256", "HS256"})


class ProofVerdict(msgspec.Struct, frozen=True):
    """The content of a verified proof."""

    anchor: str
    kind: str
    """`operator`, `policy_engine`, `service` or `passkey`."""
    decision: str
    reason: str = ""
    token: str = ""
    """The one-time token of a service, which this proof uses up."""
    record_use: Callable[[], bool] | None = None
    """Writes that the proof was used, and waits for the disk. False: the proof does not count."""


async def _no_refresh() -> None:
    """Do nothing: nobody enrols, and nobody is removed."""


Checker = Callable[[Approval, str, float], ProofVerdict]
"""Takes the approval, the proof and the wall clock time. Raises InterlockError."""


class Proofs:
    """Verifies proofs of all kinds."""

    def __init__(self, anchors: Anchors) -> None:
        self.anchors = anchors
        self.refresh: Callable[[], Awaitable[None]] = _no_refresh
        """Reads who was enrolled or removed meanwhile. Set by the node."""
        self._checkers: dict[str, Checker] = {}

    def register(self, kind: str, checker: Checker) -> None:
        """Verify proofs that begin with `kind:` with this checker."""
        self._checkers[kind] = checker

    async def judge(
        self, approval: Approval, proof: str, wall_clock: Callable[[], float]
    ) -> ProofVerdict:
        """Verify a proof and use it up.

        Every decision passes here, so a removed operator stops counting at once. Raises
        InterlockError.
        """
        await self.refresh()
        verdict = self.check(approval, proof, wall_clock())
        if verdict.record_use is not None:
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(None, verdict.record_use):
                raise invalid_proof("the counter of the passkey went backwards: it may be a copy")
        return verdict

    def check(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        """Verify a proof for an approval, with the anchors that are known now.

        It uses nothing up: see `judge`. Raises InterlockError.
        """
        if not isinstance(proof, str) or not proof:
            raise invalid_proof("the request has none, and a person's signature is required")
        if len(proof) > MAX_PROOF_BYTES:
            raise invalid_proof(f"it is longer than {MAX_PROOF_BYTES} bytes")
        kind, colon, rest = proof.partition(":")
        if colon:
            checker = self._checkers.get(kind)
            if checker is None:
                raise invalid_proof("its kind is not known here")
            verdict = checker(approval, rest, now)
        else:
            verdict = self._check_signed(approval, proof, now)
        self._check_verdict(approval, verdict)
        return verdict

    def _check_verdict(self, approval: Approval, verdict: ProofVerdict) -> None:
        """Check the rules for all kinds of proofs. Raises InterlockError."""
        caller = approval.caller
        # A person may have several keys: the limits of each hold for the person.
        named = self.anchors.find(verdict.anchor)
        anchors = named or [Anchor(verdict.anchor, verdict.kind)]
        if any(anchor.is_caller(caller.name, caller.parent_caller) for anchor in anchors):
            raise InterlockError(
                FORBIDDEN, f"{verdict.anchor} made this call, and cannot approve it as well."
            )
        if not all(anchor.may_approve(approval.tool) for anchor in anchors):
            raise invalid_proof(f"{verdict.anchor} may not approve calls of {approval.tool}")
        if approval.action == VERIFY and verdict.kind not in (OPERATOR, PASSKEY):
            raise invalid_proof("this call requires a person's own key or passkey")
        if verdict.decision not in (APPROVE, REFUSE):
            raise invalid_proof("its `decision` is neither `approve` nor `refuse`")

    # -- Signatures

    def _check_signed(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        header = read_jws_header(proof)
        anchor, payload = self._verify_signature(proof, header)
        try:
            claims = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise invalid_proof("its claims are no JSON object")
        _check_claims(approval, claims, now)
        token = ""
        if anchor.kind == POLICY_ENGINE and claims.get("nonce") != approval.nonce:
            raise invalid_proof("its `nonce` is not that of the approval")
        if anchor.kind == SERVICE:
            token_id = claims.get("token_id")
            if not isinstance(token_id, str) or not 1 <= len(token_id) <= _MAX_TOKEN_LENGTH:
                raise invalid_proof("the proof of a service needs a `token_id` of its own")
            token = token_id
        reason = claims.get("reason")
        return ProofVerdict(
            anchor.name,
            anchor.kind,
            claims["decision"],
            reason[:_MAX_REASON_LENGTH] if isinstance(reason, str) else "",
            token,
        )

    def _verify_signature(self, proof: str, header: dict[str, Any]) -> tuple[Anchor, bytes]:
        """Return the anchor that signed the proof, and what it signed. Raises InterlockError."""
        algorithm, kid = header["alg"], header.get("kid")
        candidates = [anchor for anchor in self.anchors.all if algorithm in anchor.algorithms]
        if kid is not None:
            # The key id is a hint: it says which anchor to try first, and proves nothing.
            candidates.sort(key=lambda anchor: anchor.name != kid)
        for anchor in candidates:
            payload = verify_jws(proof, anchor.key, algorithm)
            if payload is not None:
                return anchor, payload
        raise invalid_proof("no trust anchor of this node signed it")


def invalid_proof(reason: str) -> InterlockError:
    """Return the error for a proof that does not count."""
    return InterlockError(PROOF_INVALID, f"This proof is not accepted: {reason}.")


def read_jws_header(proof: str) -> dict[str, Any]:
    """Return the protected header, which is not verified yet. Raises InterlockError."""
    parts = proof.split(".")
    if len(parts) != 3 or not all(parts):
        raise invalid_proof("it is not a compact JWS of three parts")
    try:
        raw = urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4))
        header = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise invalid_proof("its header cannot be read")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise invalid_proof("its `alg` is not EdDSA, ES256 or, for a service, HS256")
    if "crit" in header or "b64" in header:
        raise invalid_proof("its header has `crit` or `b64`, which are not supported")
    return header


def verify_jws(proof: str, key: Any, algorithm: str) -> bytes | None:
    """Return the payload that was signed with this key (joserfc). None: the signature is wrong."""
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # joserfc deprecates the name `EdDSA` for Ed25519, which most programs use.
            warnings.simplefilter("ignore")
            return jws.deserialize_compact(proof, key, algorithms=[algorithm]).payload
    except (JoseError, ValueError, TypeError):
        return None


def _check_claims(approval: Approval, claims: dict[str, Any], now: float) -> None:
    """Compare the claims with the approval. Raises InterlockError."""
    audience = claims.get("aud")
    if audience != approval.audience and audience != [approval.audience]:
        raise invalid_proof("its `aud` is not this node")
    if claims.get("jti") != approval.id:
        raise invalid_proof("it is about another approval (`jti`)")
    if claims.get("args_sha256") != approval.digest:
        raise invalid_proof("it is about another call (`args_sha256`)")
    if claims.get("decision") not in (APPROVE, REFUSE):
        raise invalid_proof("its `decision` is neither `approve` nor `refuse`")
    expires, issued = _read_time(claims.get("exp")), _read_time(claims.get("iat"))
    if expires is None or issued is None:
        raise invalid_proof("it has no creation time and no end (`iat`, `exp`)")
    not_before = _read_time(claims.get("nbf", issued))
    if now >= expires:
        raise invalid_proof("it has expired (`exp`)")
    limit = MAX_PROOF_SECONDS + LEEWAY_SECONDS
    if expires > now + limit or expires - issued > limit:
        raise invalid_proof("it is valid for longer than 15 minutes (`exp`)")
    latest = now + LEEWAY_SECONDS
    if issued > latest or not_before is None or not_before > latest:
        raise invalid_proof("it is not valid yet (`iat`, `nbf`)")


def _read_time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


# -- Passkeys: verifies a WebAuthn assertion by an enrolled passkey.
#
# Pure verification with `cryptography`. The caller of this code knows who is enrolled and how often
# a passkey was used. A passkey signs one approval, its digest, the decision and the reason, so the
# signature is of no use for anything else.

PREFIX: Final = f"{PASSKEY}:"
"""The prefix of a proof by a passkey. base64url of JSON follows."""

Decision = Literal["approve", "refuse"]

ES256: Final = -7
EDDSA: Final = -8
RS256: Final = -257
ALGORITHMS: Final = (EDDSA, ES256, RS256)
"""The accepted COSE algorithm numbers, the preferred one first."""

MAX_PASSKEY_PROOF_BYTES: Final = 16 * 1024
_MIN_RSA_BITS: Final = 2048
_USER_PRESENT: Final = 0x01
_USER_VERIFIED: Final = 0x04
_BACKUP_ELIGIBLE: Final = 0x08
_BACKED_UP: Final = 0x10
_HAS_CREDENTIAL: Final = 0x40
_HEADER_BYTES: Final = 37
"""The digest of the relying party's name, the flags and the counter."""
_AAGUID_BYTES: Final = 16
_MAX_CREDENTIAL_ID_BYTES: Final = 1023
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")


class Passkey(msgspec.Struct, frozen=True):
    """An enrolled passkey: its owner, and what is needed to verify its signatures."""

    name: str
    """The name of the operator."""
    id: bytes
    """The credential id."""
    public: bytes
    """The public key (SubjectPublicKeyInfo, DER)."""
    algorithm: int
    rp_id: str
    """The host of the pages that may use the passkey."""
    counter: int = 0
    tools: tuple[str, ...] = ()
    """Globs of the tools that it may approve. Empty: all."""
    caller: str = ""
    """The name of the caller that its owner is, if it is one."""


class PasskeyVerdict(NamedTuple):
    """A decision that a passkey signed."""

    passkey: Passkey
    decision: Decision
    reason: str
    counter: int | None = None
    """The new use count, to be written before the decision counts. None: the passkey has no count,
    as passkeys that are synchronised between devices."""


class _Assertion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `navigator.credentials.get`, as the page sends it. Binary members are
    base64url."""

    id: str
    client_data: str
    authenticator_data: str
    signature: str
    decision: Decision
    reason: str = ""


class PasskeyCreation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of `navigator.credentials.create`, as the page sends it. Binary members are
    base64url."""

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
    """Return what a passkey signs for a decision. Only the reason, the last part, can contain a
    newline."""
    parts = ("interlock-approval-1", audience, id, digest, decision, reason)
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).digest()


def enrolment_challenge(code: str) -> bytes:
    """Return the challenge for a new passkey."""
    return sha256(f"interlock-enrolment-1\n{normalize_code(code)}".encode()).digest()


def normalize_code(code: str) -> str:
    """Return an enrolment code without separators and in capitals, however it was typed."""
    return "".join(char for char in code.upper() if char.isascii() and char.isalnum())


class PasskeyChecker:
    """Verifies proofs by passkeys."""

    def __init__(
        self,
        *,
        find: Callable[[bytes], Passkey | None],
        record_use: Callable[[bytes, int], bool],
        origins: Callable[[], Collection[str]],
    ) -> None:
        """Args:
        find: finds a passkey by its credential id. It reads no file.
        record_use: takes a credential id and its new counter, writes them, and returns whether the
            counter is new. It waits for the disk.
        origins: returns the origins of the approval page.
        """
        self._find = find
        self._record_use = record_use
        self._origins = origins

    def __call__(self, approval: Approval, proof: str, now: float) -> ProofVerdict:
        """Verify a proof, given without its prefix. Raises PROOF_INVALID."""
        verdict = self.check(approval.audience, approval.id, approval.digest, proof)
        passkey, counter = verdict.passkey, verdict.counter
        record_use = None if counter is None else lambda: self._record_use(passkey.id, counter)
        return ProofVerdict(
            passkey.name, PASSKEY, verdict.decision, verdict.reason, record_use=record_use
        )

    def check(self, audience: str, id: str, digest: str, proof: str) -> PasskeyVerdict:
        """Verify a proof for the approval `id` of the node `audience`. Raises PROOF_INVALID."""
        if len(proof) > MAX_PASSKEY_PROOF_BYTES:
            _reject("The proof is too long.")
        try:
            raw = from_base64url(proof.removeprefix(PREFIX))
            assertion = msgspec.json.decode(raw, type=_Assertion)
            credential = from_base64url(assertion.id)
            client_data = from_base64url(assertion.client_data)
            authenticator_data = from_base64url(assertion.authenticator_data)
            signature = from_base64url(assertion.signature)
        except (ValueError, msgspec.MsgspecError):
            _reject("The proof is not the result of a passkey.")
        passkey = self._find(credential)
        if passkey is None:
            _reject("This passkey is not enrolled here.")
        expected = challenge(audience, id, digest, assertion.decision, assertion.reason)
        self._check_client_data(client_data, "webauthn.get", expected, passkey.rp_id)
        authenticator = _read_authenticator(authenticator_data, passkey.rp_id)
        signed = authenticator_data + sha256(client_data).digest()
        if not _verify_signature(passkey.public, passkey.algorithm, signature, signed):
            _reject("The signature is not of this passkey.")
        # Passkeys that are synchronised between devices have no use count.
        counts = bool(authenticator.counter or passkey.counter)
        if counts and authenticator.counter <= passkey.counter:
            _reject("The counter of this passkey went backwards: it may be a copy.")
        return PasskeyVerdict(
            passkey,
            assertion.decision,
            assertion.reason,
            authenticator.counter if counts else None,
        )

    def read_created(self, created: PasskeyCreation, code: str, name: str) -> Passkey:
        """Return the new passkey that a page made with an enrolment code. Raises PROOF_INVALID."""
        try:
            client_data = from_base64url(created.client_data)
            authenticator_data = from_base64url(created.authenticator_data)
            public = from_base64url(created.public_key)
        except ValueError:
            _reject("The data is not what a browser makes for a new passkey.")
        expected = enrolment_challenge(code)
        origin = self._check_client_data(client_data, "webauthn.create", expected, None)
        rp_id = urlsplit(origin).hostname or ""
        authenticator = _read_authenticator(authenticator_data, rp_id)
        data = authenticator.rest
        size = int.from_bytes(data[_AAGUID_BYTES : _AAGUID_BYTES + 2], "big")
        credential = data[_AAGUID_BYTES + 2 : _AAGUID_BYTES + 2 + size]
        if not authenticator.flags & _HAS_CREDENTIAL or not 0 < size <= _MAX_CREDENTIAL_ID_BYTES:
            _reject("The authenticator made no passkey.")
        if len(credential) != size:
            _reject("The data of the authenticator is incomplete.")
        if not _is_supported_key(public, created.algorithm):
            _reject("The algorithm of the passkey is not ES256, EdDSA or RS256.")
        return Passkey(name, credential, public, created.algorithm, rp_id, authenticator.counter)

    def _check_client_data(self, raw: bytes, type: str, expected: bytes, rp_id: str | None) -> str:
        """Check the data of the browser and return the origin of the page."""
        try:
            data = msgspec.json.decode(raw, type=_ClientData)
            signed_challenge = from_base64url(data.challenge)
        except (ValueError, msgspec.MsgspecError):
            _reject("The browser's part of the proof cannot be read.")
        if data.type != type:
            _reject("The passkey signed another kind of request.")
        if not hmac.compare_digest(signed_challenge, expected):
            _reject("The passkey signed another challenge.")
        if data.origin not in self._origins() or data.crossOrigin or data.topOrigin is not None:
            _reject("The passkey was used on a page that is not of this node.")
        if rp_id is not None and urlsplit(data.origin).hostname != rp_id:
            _reject("The passkey belongs to another host.")
        return data.origin


def to_base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    padded = text + "=" * (-len(text) % 4)
    try:
        data = b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if to_base64url(data) != text:
        # Each value must have one encoding only.
        raise ValueError("not canonical base64url")
    return data


def _read_authenticator(data: bytes, rp_id: str) -> _Authenticator:
    if len(data) < _HEADER_BYTES:
        _reject("The data of the authenticator is incomplete.")
    flags = data[32]
    if not hmac.compare_digest(data[:32], sha256(rp_id.encode()).digest()):
        _reject("The passkey belongs to another host.")
    if not flags & _USER_PRESENT or not flags & _USER_VERIFIED:
        _reject("The passkey did not verify its owner.")
    if flags & _BACKED_UP and not flags & _BACKUP_ELIGIBLE:
        _reject("The flags of the authenticator contradict each other.")
    counter = int.from_bytes(data[33:37], "big")
    return _Authenticator(data[:32], flags, counter, data[_HEADER_BYTES:])


def _is_supported_key(public: bytes, algorithm: int) -> bool:
    try:
        key = load_der_public_key(public)
    except (ValueError, UnsupportedAlgorithm):
        return False
    if algorithm == ES256:
        return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if algorithm == EDDSA:
        return isinstance(key, ed25519.Ed25519PublicKey)
    if algorithm == RS256:
        return isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA_BITS
    return False


def _verify_signature(public: bytes, algorithm: int, signature: bytes, data: bytes) -> bool:
    if not _is_supported_key(public, algorithm):
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


def _reject(reason: str) -> NoReturn:
    raise InterlockError(PROOF_INVALID, reason)
