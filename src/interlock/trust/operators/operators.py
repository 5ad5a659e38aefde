"""Operators of a running node: their enrolment, their sign-in, and the address of their page."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.core.call import Caller, Client
from interlock.core.config import Config
from interlock.core.paths import state_dir
from interlock.errors import (
    INVALID_REQUEST,
    PROOF_INVALID,
    UNAUTHENTICATED,
    UNKNOWN_APPROVAL,
    InterlockError,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.timestamps import format_local
from interlock.protocol.mcp import LATEST_STATELESS, Era
from interlock.trust.approvals.proofs import (
    APPROVE,
    OPERATOR,
    PASSKEY,
    PREFIX,
    Anchor,
    Anchors,
    Passkey,
    PasskeyChecker,
    PasskeyCreation,
    Proofs,
    from_base64url,
    read_public_key,
    to_base64url,
)
from interlock.trust.approvals.record import VERIFY, Approval
from interlock.trust.operators.chain import (
    SUBJECT,
    Enrolment,
    algorithms_of,
    digest_of,
    key_of,
)
from interlock.trust.operators.store import (
    Invitation,
    OperatorReader,
    OperatorsSnapshot,
    OperatorStore,
    PendingEnrolment,
)

# -- Keeps the list of operators up to date, so that a removed operator stops counting and a new one
# counts at once. It checks the enrolments and the key files of the config regularly, and before
# each proof. Never on the event loop: a disk may be slow, and another process may lock the file.

POLL_SECONDS: Final = 0.5

_log = logging.getLogger("interlock.node")


class OperatorWatch:
    """The operators, as last read from the disk."""

    def __init__(
        self,
        store: OperatorStore,
        *,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads the operators at once and blocks: create it before the node serves requests."""
        self.enrolled: tuple[Enrolment, ...] = ()
        self.pending: tuple[PendingEnrolment, ...] = ()
        """Enrolments that wait for an operator."""
        self.command_options = ""
        """The options with which a command finds this node, with a leading space."""
        self.recovery_delay: float | None = None
        """After so many seconds a recovery counts without an operator. None: never."""
        self.warning = ""
        """Why some entries of the file do not count. Empty: all count."""
        self.problem: str | None = None
        """Why the last read failed. The previous operators count until then."""
        self.anchors: Anchors | None = None
        """All trust anchors, of which the enrolled operators are a part. Set by the node."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when an operator was enrolled or removed."""
        self.on_change: Callable[..., None] = lambda *_: None
        """Takes a change for the journal: subject, event and detail."""
        self._store = store
        self._reader = OperatorReader(store)
        self._now = wall_clock
        self._call_later = call_later
        self._passkeys: dict[bytes, Passkey] = {}
        self._timer: Any = None
        self._is_started = False
        self._unrecorded: list[tuple[str, str, str]] = []
        """Changes that were found before `start`, for the journal."""
        self._lock = asyncio.Lock()
        self._reads = 0
        self._task: asyncio.Task[None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()
        try:
            self._use(self._reader.read_changes())
            self._reader.store_head()
        except InterlockError as error:
            self._on_failure(error)
        self._reader.start()

    def passkey(self, id: bytes) -> Passkey | None:
        """Return the passkey with this credential id."""
        return self._passkeys.get(id)

    # -- Start and stop

    def start(self) -> None:
        """Begin to check regularly, and journal the changes found so far."""
        if not self._is_started:
            self._is_started = True
            for change in self._unrecorded:
                self.on_change(*change)
            self._unrecorded.clear()
            self._schedule()

    async def stop(self) -> None:
        self._is_started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in (self._task, *self._refreshing):
            if task is not None:
                await task
        async with self._lock:
            await asyncio.get_running_loop().run_in_executor(None, self._reader.close)

    def _schedule(self) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        self._timer = call_later(POLL_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        try:
            await self.refresh()
        except Exception:
            # The checks must go on, or a removed operator would count without a limit.
            _log.exception("operators: the check of enrolments failed")
        finally:
            self._task = None
            if self._is_started:
                self._schedule()

    # -- Reading

    async def refresh(self) -> None:
        """Read the operators now.

        All calls during a read share the next read: however many proofs arrive, one thread is busy
        at most. Read errors are logged and raise nothing.
        """
        # A task of its own: what was read must count, even if the caller is cancelled.
        task = asyncio.get_running_loop().create_task(self._refresh(self._reads))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)
        await asyncio.shield(task)

    async def _refresh(self, earlier_reads: int) -> None:
        async with self._lock:
            if self._reads > earlier_reads:
                return
            self._reads += 1
            loop = asyncio.get_running_loop()
            snapshot, apply_anchors, problem = await loop.run_in_executor(None, self._read)
            if problem is not None:
                self._on_failure(problem)
            elif self.problem is not None:
                self.problem = None
                _log.info("operators: the keys can be read again")
            if apply_anchors is not None:
                apply_anchors()
            if snapshot is not None:
                self._use(snapshot)
        if apply_anchors is not None or snapshot is not None:
            self.on_changed()

    def _read(
        self,
    ) -> tuple[OperatorsSnapshot | None, Callable[[], None] | None, InterlockError | None]:
        """Read enrolments and key files. It blocks. An error in one does not prevent the other."""
        snapshot, apply_anchors, problem = None, None, None
        try:
            snapshot = self._reader.read_changes()
            if self._advance_recoveries(self.pending if snapshot is None else snapshot.pending):
                snapshot = self._reader.read_changes() or snapshot
            self._reader.store_head()
        except InterlockError as error:
            problem = error
        try:
            apply_anchors = None if self.anchors is None else self.anchors.read_changes()
        except InterlockError as error:
            problem = problem or error
        return snapshot, apply_anchors, problem

    def _advance_recoveries(self, pending: Iterable[PendingEnrolment]) -> bool:
        """Begin the delay of each new recovery, and enrol those whose delay is over.

        Returns whether the file was written. It blocks. Raises InterlockError.
        """
        wrote = False
        for recovery in pending:
            if not recovery.recovery or self.recovery_delay is None:
                continue
            if not recovery.seen:
                self._store.mark_seen(recovery.id)
                wrote = True
            elif self._now() >= recovery.seen + self.recovery_delay:
                digest = self._store.recover(recovery.id)
                if digest is not None:
                    self._reader.recoveries.add(digest)
                wrote = True
        return wrote

    def recovery_time(self, pending: PendingEnrolment) -> float | None:
        """Return when a recovery counts if no operator rejects it. None: never, or not known
        yet."""
        if not pending.recovery or not pending.seen or self.recovery_delay is None:
            return None
        return pending.seen + self.recovery_delay

    def notices(self) -> list[str]:
        """Return what every operator should know, as sentences."""
        notices = [self.warning] if self.warning else []
        for pending in self.pending:
            enrolment, id = pending.enrolment, pending.id
            label = f"{enrolment.name} ({enrolment.kind} {enrolment.id[:16]})"
            if pending.recovery:
                expires_at = self.recovery_time(pending)
                when = "only if root or an operator allows it"
                if expires_at is not None:
                    when = f"at {format_local(expires_at)}"
                notices.append(
                    f"Recovery: {label} becomes an operator {when}, without the proof of another. "
                    f"Reject it: `interlock keys reject {id}{self.command_options}`"
                )
            else:
                notices.append(
                    f"Enrolment pending: {label} requests to become an operator. An operator "
                    f"confirms it: `interlock keys approve {id}{self.command_options}`"
                )
        return notices

    def _use(self, snapshot: OperatorsSnapshot | None) -> None:
        if snapshot is None:
            return
        before, self.enrolled = self.enrolled, tuple(snapshot.operators)
        pending_before, self.pending = self.pending, tuple(snapshot.pending)
        self._report_warning(snapshot.warning)
        head = "" if snapshot.head is None else f"head:{snapshot.head.number}:{snapshot.head.link}"
        if self._is_started:
            old = {(operator.id, operator.name, operator.kind) for operator in before}
            new = {(operator.id, operator.name, operator.kind) for operator in snapshot.operators}
            for _, name, kind in sorted(new - old):
                self.on_change(f"{name} ({kind})", "enrolled", head)
            for _, name, kind in sorted(old - new):
                self.on_change(f"{name} ({kind})", "removed", head)
        known_ids = {pending.id for pending in pending_before}
        for pending in snapshot.pending:
            if pending.id not in known_ids:
                self._report_request(pending)
        self._passkeys = {
            passkey.id: passkey
            for passkey in (
                operator.passkey for operator in self.enrolled if operator.kind == "passkey"
            )
        }
        if self.anchors is not None:
            self.anchors.refresh()

    def _report_warning(self, problem: str) -> None:
        """Report entries of the file that no operator signed."""
        warning = ""
        if problem:
            warning = (
                f"{self._store.path} has an entry that does not count ({problem}): it was written "
                "without an operator's signature. Check who can write the file."
            )
        if warning and warning != self.warning:
            _log.error("operators: %s", warning)
            self._record("operators.db", "ignored", problem)
        self.warning = warning

    def _report_request(self, pending: PendingEnrolment) -> None:
        enrolment = pending.enrolment
        event = "recovery requested" if pending.recovery else "enrolment requested"
        level = logging.WARNING if pending.recovery else logging.INFO
        action = "reject" if pending.recovery else "approve"
        _log.log(
            level,
            "operators: %s: %s (%s). Decide: `interlock keys %s %s`",
            event,
            enrolment.name,
            enrolment.kind,
            action,
            pending.id,
        )
        self._record(f"{enrolment.name} ({enrolment.kind})", event, f"enrolment:{pending.id}")

    def _record(self, name: str, event: str, detail: str) -> None:
        if self._is_started:
            self.on_change(name, event, detail)
        else:
            self._unrecorded.append((name, event, detail))

    def _on_failure(self, error: InterlockError) -> None:
        if self.problem is None:
            _log.error(
                "operators: %s The operators that were read before count until then.", error.message
            )
        self.problem = error.message


INBOX: Final = "inbox"
"""The id in what an operator signs to sign in to the list of approvals."""
SESSION_SECONDS: Final = 900.0
CHALLENGE_SECONDS: Final = 120.0
_MAX_SESSIONS: Final = 1_000
_NONCE_BYTES: Final = 16
_TIME_BYTES: Final = 8
_MARK_BYTES: Final = 16
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")
T = TypeVar("T")


def operators_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the operator store of this node."""
    return state_dir(config, environ, base_dir) / "operators.db"


def page_base(config: Config, url: str | None) -> str | None:
    """Return the address of the approval page, without a trailing slash.

    For an address on the node's own machine the host is `localhost`, because browsers bind keys to
    host names and accept no address for passkeys.

    Args:
        url: where the node listens.

    None: the node does not listen, or listens at a host name that the config does not name.
    """
    if config.approvals.url is not None:
        return f"{config.approvals.url.rstrip('/').removesuffix('/approvals')}/approvals"
    parts = urlsplit(url or "")
    if not parts.hostname or parts.hostname in _ALL_ADDRESSES:
        return None
    return local_base(url or "") or f"{parts.scheme}://{parts.netloc}/approvals"


def local_base(url: str) -> str | None:
    """Return the address of the page on the node's own machine. None: it does not listen there."""
    parts = urlsplit(url)
    if parts.hostname not in (*_LOOPBACK, *_ALL_ADDRESSES):
        return None
    return f"{parts.scheme}://localhost:{parts.port}/approvals"


def page_origins(config: Config, url: str | None) -> tuple[str, ...]:
    """Return the origins of the page: its public one, and the one on the node's own machine."""
    bases = (page_base(config, url), local_base(url or ""))
    parts = [urlsplit(base) for base in bases if base is not None]
    return tuple(dict.fromkeys(f"{part.scheme}://{part.netloc.lower()}" for part in parts))


def thumbprint(key: Any) -> str:
    """Return the thumbprint of a public key (RFC 7638)."""
    return str(key.thumbprint())


class _EnrolmentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    key: dict[str, Any] | None = None
    passkey: PasskeyCreation | None = None


class Operators:
    """Enrolment of operators, and their sessions on the approval page."""

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
        """Args:
        origins: returns the origins of the approval page.
        audience: returns the id of this node.
        watch: the list of operators. None: it is created.
        """
        self.store = store
        self.watch = watch or OperatorWatch(store)
        self.passkeys = PasskeyChecker(
            find=self.watch.passkey, record_use=store.record_use, origins=origins
        )
        self.proofs: Proofs | None = None
        """Verifies proofs. Set by the node."""
        self._audience = audience
        self._clock = clock
        self._now = wall_clock
        self._challenge_key = secrets.token_bytes(32)
        self._used_challenges: dict[str, float] = {}
        """Signed challenges, and when each expires."""
        self._sessions: BoundedDict[bytes, tuple[str, float]] = BoundedDict(_MAX_SESSIONS)

    def anchors(self) -> Iterator[Anchor]:
        """Yield the anchors of all enrolled operators. Reads no file.

        The anchor of a passkey has no key, because passkeys are verified elsewhere. It only says
        who its owner is and what that operator may approve.
        """
        for operator in self.watch.enrolled:
            tools, caller = operator.tools, operator.caller
            if operator.kind == "passkey":
                yield Anchor(operator.name, PASSKEY, tools=tools, caller=caller)
                continue
            try:
                key = key_of(operator)
            except InterlockError as error:
                _log.error("operators: %s", error.message)
                continue
            algorithms = algorithms_of(operator)
            yield Anchor(operator.name, key=key, algorithms=algorithms, tools=tools, caller=caller)

    # -- Enrolment

    async def enrol(self, request: bytes) -> dict[str, str]:
        """Enrol the key or passkey that a browser sent with a code.

        A request without a key or passkey only asks for the name of the code's owner. Returns that
        name and, if an operator has to confirm the enrolment, its id as `pending`. Raises
        InterlockError.
        """
        try:
            details = msgspec.json.decode(request, type=_EnrolmentRequest)
        except msgspec.MsgspecError as error:
            raise InterlockError(
                INVALID_REQUEST, f"The enrolment request cannot be read: {error}."
            ) from None

        def create(invitation: Invitation) -> Enrolment:
            if details.passkey is not None:
                passkey = self.passkeys.read_created(details.passkey, details.code, invitation.name)
                return Enrolment.from_passkey(
                    msgspec.structs.replace(
                        passkey, tools=invitation.tools, caller=invitation.caller
                    )
                )
            assert details.key is not None
            return enrol_key(details.key, invitation)

        # Off the event loop: a disk may be slow, and another process may lock the file.
        loop = asyncio.get_running_loop()
        if details.key is None and details.passkey is None:
            invitation = await loop.run_in_executor(None, self.store.find_invitation, details.code)
            response = None if invitation is None else {"name": invitation.name}
        else:
            result = await loop.run_in_executor(None, self.store.redeem, details.code, create)
            response = None
            if isinstance(result, PendingEnrolment):
                response = {"name": result.enrolment.name, "pending": result.id}
            elif result is not None:
                response = {"name": result.name}
            await self.refresh()
        if response is None:
            raise InterlockError(
                PROOF_INVALID,
                "Invalid or expired code. Get a new one: `interlock keys enrol NAME`.",
            )
        return response

    async def enrolments(self) -> dict[str, Any]:
        """Return the operators and the pending enrolments, each with the entry that an operator
        signs to confirm it. Raises InterlockError."""
        await self.refresh()
        chain = await asyncio.get_running_loop().run_in_executor(None, self.store.chain)
        now = self._now()

        def to_json(pending: PendingEnrolment) -> dict[str, Any]:
            enrolment = pending.enrolment
            draft = chain.draft(time=now, enrol=[enrolment])
            return {
                "id": pending.id,
                "name": enrolment.name,
                "kind": enrolment.kind,
                "key": enrolment.id,
                "tools": list(enrolment.tools),
                "caller": enrolment.caller,
                "made": pending.made,
                "recovery": pending.recovery,
                "ends": self.watch.recovery_time(pending),
                "aud": draft.audience,
                "jti": SUBJECT,
                "args_sha256": draft.digest,
                "entry": draft.entry.decode(),
            }

        return {
            "now": now,
            "operators": [
                {"name": operator.name, "kind": operator.kind, "id": operator.id}
                for operator in self.watch.enrolled
            ],
            "pending": [to_json(pending) for pending in self.watch.pending],
        }

    async def admit_enrolment(self, id: str, entry: str, proof: str) -> str:
        """Enrol a pending operator by the proof of another, and return the name. Raises
        InterlockError."""
        raw = entry.encode()
        loop = asyncio.get_running_loop()

        def admit() -> Enrolment:
            if proof.startswith(PREFIX):
                # A copied passkey, and its page, can only be detected when the proof is new.
                audience = self.store.chain().audience
                verdict = self.passkeys.check(audience, SUBJECT, digest_of(raw), proof)
                counter = verdict.counter
                if counter is not None and not self.store.record_use(verdict.passkey.id, counter):
                    raise InterlockError(
                        PROOF_INVALID,
                        "The counter of this passkey went backwards: it may be a copy. "
                        "Remove the key.",
                    )
            return self.store.admit(id, raw, proof)

        await self.refresh()
        enrolment = await loop.run_in_executor(None, admit)
        await self.refresh()
        return enrolment.name

    async def reject_enrolment(self, id: str) -> None:
        """Remove a pending enrolment. Raises InterlockError."""
        is_removed = await asyncio.get_running_loop().run_in_executor(None, self.store.reject, id)
        await self.refresh()
        if not is_removed:
            raise InterlockError(UNKNOWN_APPROVAL, "No pending enrolment has this id.")

    # -- Sessions

    def new_challenge(self) -> dict[str, str]:
        """Return a challenge that an operator signs to sign in.

        It contains its expiry and an authentication code of this node, so the node stores nothing,
        however many clients request one.
        """
        expires_at = int((self._clock() + CHALLENGE_SECONDS) * 1000)
        content = secrets.token_bytes(_NONCE_BYTES) + expires_at.to_bytes(_TIME_BYTES, "big")
        return {"nonce": to_base64url(content + self._mark(content)), "aud": self._audience()}

    def _mark(self, content: bytes) -> bytes:
        return blake2b(content, key=self._challenge_key, digest_size=_MARK_BYTES).digest()

    def _challenge_end(self, nonce: str) -> float:
        """Return when a challenge expires. 0: this node did not make it, or it was used."""
        try:
            raw = from_base64url(nonce)
        except ValueError:
            return 0.0
        content, mark = raw[: _NONCE_BYTES + _TIME_BYTES], raw[_NONCE_BYTES + _TIME_BYTES :]
        if nonce in self._used_challenges or not hmac.compare_digest(mark, self._mark(content)):
            return 0.0
        return int.from_bytes(content[_NONCE_BYTES:], "big") / 1000

    async def sign_in(self, nonce: str, proof: str) -> str:
        """Return a new session for the operator who signed a challenge. Raises InterlockError."""
        expired = InterlockError(PROOF_INVALID, "This challenge is no longer valid. Sign in again.")
        if self._clock() >= self._challenge_end(nonce) or self.proofs is None:
            raise expired
        approval = _sign_in_approval(self._audience(), nonce)
        verdict = await self.proofs.judge(approval, proof, self._now)
        if verdict.decision != APPROVE:
            raise InterlockError(PROOF_INVALID, "The operator did not agree to sign in.")
        expires_at = self._challenge_end(nonce)
        if self._clock() >= expires_at:
            # Another request used the same proof meanwhile, or the check took too long.
            raise expired
        self._remove_expired_challenges()
        self._used_challenges[nonce] = expires_at
        session = secrets.token_urlsafe(32)
        entry = (verdict.anchor, self._clock() + SESSION_SECONDS)
        self._sessions[sha256(session.encode()).digest()] = entry
        return session

    def session_operator(self, session: str) -> str:
        """Return the name of the operator of a session. Raises InterlockError."""
        name, expires_at = self._sessions.get(sha256(session.encode()).digest(), ("", 0.0))
        is_operator = self.proofs is not None and bool(self.proofs.anchors.find(name))
        if self._clock() >= expires_at or not is_operator:
            raise InterlockError(UNAUTHENTICATED, "The session has expired. Sign in again.")
        return name

    def session_seconds(self, session: str) -> float:
        """Return for how many seconds a session is still valid."""
        _, expires_at = self._sessions.get(sha256(session.encode()).digest(), ("", 0.0))
        return max(0.0, expires_at - self._clock())

    async def refresh(self) -> None:
        """Read the operators again."""
        await self.watch.refresh()

    def _remove_expired_challenges(self) -> None:
        now = self._clock()
        self._used_challenges = {
            nonce: expires_at
            for nonce, expires_at in self._used_challenges.items()
            if now < expires_at
        }


def operators_of(anchors: Iterable[Anchor]) -> tuple[Enrolment, ...]:
    """Return the operators that the config names, as enrolments that may sign the first entry."""
    return tuple(
        _to_enrolment(
            anchor.key, anchor.algorithms, Invitation(anchor.name, anchor.tools, anchor.caller)
        )
        for anchor in anchors
        if anchor.kind == OPERATOR
    )


def enrol_key(source: bytes | str | dict[str, Any], invitation: Invitation) -> Enrolment:
    """Return the enrolment of a public key (PEM or JWK). Raises InterlockError."""
    return _to_enrolment(*read_public_key(source, invitation.name), invitation)


def _to_enrolment(key: Any, algorithms: tuple[str, ...], invitation: Invitation) -> Enrolment:
    return Enrolment(
        id=thumbprint(key),
        name=invitation.name,
        kind="key",
        algorithm=algorithms[0],
        public=key.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        tools=invitation.tools,
        caller=invitation.caller,
    )


def _sign_in_approval(audience: str, nonce: str) -> Approval:
    """Return the approval that an operator signs to sign in. No call waits for it."""
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
