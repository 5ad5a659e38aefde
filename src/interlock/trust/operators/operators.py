"""The people who confirm calls: where they enrol, how they show who they are, and where the page
is that they use."""

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
    public_key,
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

# -- Sees to it that a removed operator counts no more, and a new one at once: looks again and
# again at who is enrolled and at the key files of the config, and whenever a proof comes in.
# Never on the event loop: a disk may be slow, and somebody may hold the file.

LOOKED_AT: Final = 0.5

_log = logging.getLogger("interlock.node")


class OperatorWatch:
    """Who is enrolled, as it was last read."""

    def __init__(
        self,
        store: OperatorStore,
        *,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads once, here and now: before anybody is served."""
        self.enrolled: tuple[Enrolment, ...] = ()
        self.pending: tuple[PendingEnrolment, ...] = ()
        """Enrolments that an operator has yet to confirm."""
        self.recovery_delay: float | None = None
        """After so many seconds somebody is enrolled whom no operator confirmed. None: never."""
        self.warning = ""
        """Which entries of the file do not count."""
        self.problem: str | None = None
        """Why the last look failed. What was read before counts until then."""
        self.anchors: Anchors | None = None
        """Set by the node: who counts, of whom the enrolled are a part."""
        self.on_changed: Callable[[], None] = lambda: None
        """Told when somebody was enrolled or removed."""
        self.on_change: Callable[..., None] = lambda *_: None
        """Hears who was, for the record: whom it is about, what happened, and more of it."""
        self._store = store
        self._reader = OperatorReader(store)
        self._now = wall_clock
        self._call_later = call_later
        self._passkeys: dict[bytes, Passkey] = {}
        self._timer: Any = None
        self._watches = False
        self._unrecorded: list[tuple[str, str, str]] = []
        """What was found before anybody could record it."""
        self._one_at_a_time = asyncio.Lock()
        self._begun = 0
        self._task: asyncio.Task[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()
        try:
            self._take(self._reader.changed())
            self._reader.keep_head()
        except InterlockError as error:
            self._failed(error)
        self._reader.start()

    def passkey(self, id: bytes) -> Passkey | None:
        """The passkey with this credential id."""
        return self._passkeys.get(id)

    # -- life

    def start(self) -> None:
        """Look from now on, without being asked."""
        if not self._watches:
            self._watches = True
            for words in self._unrecorded:
                self.on_change(*words)
            self._unrecorded.clear()
            self._arm()

    async def stop(self) -> None:
        self._watches = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in (self._task, *self._looking):
            if task is not None:
                await task
        async with self._one_at_a_time:
            await asyncio.get_running_loop().run_in_executor(None, self._reader.close)

    def _arm(self) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        self._timer = call_later(LOOKED_AT, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            await self.look()
        except Exception:
            # Whatever it is: nobody would be removed any more if this stopped.
            _log.exception("it could not be looked at who is enrolled")
        finally:
            self._task = None
            if self._watches:
                self._arm()

    # -- looking

    async def look(self) -> None:
        """See how it is now. All who ask while somebody looks share the next look: however many
        proofs come in, one thread is kept busy at most. What cannot be read is said, and raises
        nothing."""
        # On its own: what was read must count, also when the one who asked hangs up.
        looking = asyncio.get_running_loop().create_task(self._look(self._begun))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)
        await asyncio.shield(looking)

    async def _look(self, asked_after: int) -> None:
        async with self._one_at_a_time:
            if self._begun > asked_after:
                return
            self._begun += 1
            loop = asyncio.get_running_loop()
            found, take, problem = await loop.run_in_executor(None, self._read)
            if problem is not None:
                self._failed(problem)
            elif self.problem is not None:
                self.problem = None
                _log.info("The operators' keys can be read again.")
            if take is not None:
                take()
            if found is not None:
                self._take(found)
        if take is not None or found is not None:
            self.on_changed()

    def _read(
        self,
    ) -> tuple[OperatorsSnapshot | None, Callable[[], None] | None, InterlockError | None]:
        """Waits for the disk. One that cannot be read is no reason not to heed the other."""
        found, take, problem = None, None, None
        try:
            found = self._reader.changed()
            if self._recover(self.pending if found is None else found.pending):
                found = self._reader.changed() or found
            self._reader.keep_head()
        except InterlockError as error:
            problem = error
        try:
            take = None if self.anchors is None else self.anchors.changed()
        except InterlockError as error:
            problem = problem or error
        return found, take, problem

    def _recover(self, pending: Iterable[PendingEnrolment]) -> bool:
        """Begin the delay of each recovery that is new, and let happen what waited long enough.
        Whether something was written. Waits for the disk. Raises InterlockError."""
        wrote = False
        for one in pending:
            if not one.recovery or self.recovery_delay is None:
                continue
            if not one.seen:
                self._store.see(one.id)
                wrote = True
            elif self._now() >= one.seen + self.recovery_delay:
                digest = self._store.recover(one.id)
                if digest is not None:
                    self._reader.recoveries.add(digest)
                wrote = True
        return wrote

    def ends(self, one: PendingEnrolment) -> float | None:
        """When a recovery counts if no operator refuses it. None: never, or not known yet."""
        if not one.recovery or not one.seen or self.recovery_delay is None:
            return None
        return one.seen + self.recovery_delay

    def notices(self) -> list[str]:
        """What every operator should know, in words."""
        found = [self.warning] if self.warning else []
        for one in self.pending:
            who, id = f"{one.one.name} ({one.one.kind} {one.one.id[:16]})", one.id
            if one.recovery:
                ends = self.ends(one)
                when = "only if root or an operator lets it"
                if ends is not None:
                    when = f"at {format_local(ends)}"
                found.append(
                    f"Recovery: {who} becomes an operator {when}, without the proof of another. "
                    f"Reject it: interlock keys reject {id}"
                )
            else:
                found.append(
                    f"Enrolment pending: {who} wants to become an operator. An operator confirms "
                    f"it with: interlock keys approve {id}"
                )
        return found

    def _take(self, found: OperatorsSnapshot | None) -> None:
        if found is None:
            return
        before, self.enrolled = self.enrolled, tuple(found.operators)
        asked_before, self.pending = self.pending, tuple(found.pending)
        self._tell_warning(found.warning)
        head = "" if found.head is None else f"head:{found.head.number}:{found.head.link}"
        if self._watches:
            was = {(one.id, one.name, one.kind) for one in before}
            now = {(one.id, one.name, one.kind) for one in found.operators}
            for _, name, kind in sorted(now - was):
                self.on_change(f"{name} ({kind})", "enrolled", head)
            for _, name, kind in sorted(was - now):
                self.on_change(f"{name} ({kind})", "removed", head)
        known = {one.id for one in asked_before}
        for one in found.pending:
            if one.id not in known:
                self._tell_asked(one)
        self._passkeys = {
            one.id: one
            for one in (each.passkey for each in self.enrolled if each.kind == "passkey")
        }
        if self.anchors is not None:
            self.anchors.refresh()

    def _tell_warning(self, problem: str) -> None:
        """Somebody wrote into the file what no operator signed."""
        warning = ""
        if problem:
            warning = (
                f"{self._store.path} holds an entry that does not count ({problem}): somebody "
                "wrote it without an operator's signature."
            )
        if warning and warning != self.warning:
            _log.error("%s", warning)
            self._record("operators.db", "ignored", problem)
        self.warning = warning

    def _tell_asked(self, one: PendingEnrolment) -> None:
        word = "recovery requested" if one.recovery else "enrolment requested"
        level = logging.WARNING if one.recovery else logging.INFO
        action = "refuse" if one.recovery else "admit"
        _log.log(
            level,
            "%s: %s (%s) wants to become an operator: interlock keys %s %s",
            word,
            one.one.name,
            one.one.kind,
            action,
            one.id,
        )
        self._record(f"{one.one.name} ({one.one.kind})", word, f"enrolment:{one.id}")

    def _record(self, name: str, word: str, detail: str) -> None:
        if self._watches:
            self.on_change(name, word, detail)
        else:
            self._unrecorded.append((name, word, detail))

    def _failed(self, error: InterlockError) -> None:
        if self.problem is None:
            _log.error("%s Until then those count who counted before.", error.message)
        self.problem = error.message


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
    passkey: PasskeyCreation | None = None


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
        self.watch = watch or OperatorWatch(store)
        self.passkeys = PasskeyChecker(find=self.watch.passkey, used=store.used, origins=origins)
        self.proofs: Proofs | None = None
        """Set by the node: what looks at every proof."""
        self._audience = audience
        self._clock = clock
        self._now = wall_clock
        self._question_key = secrets.token_bytes(32)
        self._answered: dict[str, float] = {}
        """The questions that an operator answered, and when they are over anyway."""
        self._sessions: BoundedDict[bytes, tuple[str, float]] = BoundedDict(_MOST)

    def anchors(self) -> Iterator[Anchor]:
        """Everybody who is enrolled. A passkey signs in its own way: its anchor has no key, and
        says only whose it is and what that one may confirm. Reads no file."""
        for one in self.watch.enrolled:
            if one.kind == "passkey":
                yield Anchor(one.name, PASSKEY, tools=one.tools, caller=one.caller)
                continue
            try:
                key = key_of(one)
            except InterlockError as wrong:
                _log.error("%s", wrong.message)
                continue
            names = algorithms_of(one)
            yield Anchor(one.name, key=key, algorithms=names, tools=one.tools, caller=one.caller)

    # -- enrolment

    async def enrol(self, asked: bytes) -> dict[str, str]:
        """Enrol what a browser sent with its code. Without a key or a passkey it only asks whose
        the code is. Returns that name, and the id under which the enrolment is pending where an
        operator has to confirm it. Raises InterlockError."""
        try:
            request = msgspec.json.decode(asked, type=_Asked)
        except msgspec.MsgspecError as error:
            raise InterlockError(
                INVALID_REQUEST, f"The enrolment cannot be read: {error}."
            ) from None

        def make(invitation: Invitation) -> Enrolment:
            if request.passkey is not None:
                made = self.passkeys.enrolled(request.passkey, request.code, invitation.name)
                return Enrolment.of_passkey(
                    msgspec.structs.replace(made, tools=invitation.tools, caller=invitation.caller)
                )
            assert request.key is not None
            return enrolled_key(request.key, invitation)

        # A disk may be slow, and somebody may hold the file: not on the event loop.
        loop = asyncio.get_running_loop()
        if request.key is None and request.passkey is None:
            invitation = await loop.run_in_executor(None, self.store.invited, request.code)
            told = None if invitation is None else {"name": invitation.name}
        else:
            made = await loop.run_in_executor(None, self.store.redeem, request.code, make)
            told = None
            if isinstance(made, PendingEnrolment):
                told = {"name": made.one.name, "pending": made.id}
            elif made is not None:
                told = {"name": made.name}
            await self.refresh()
        if told is None:
            raise InterlockError(
                PROOF_INVALID,
                "This code is not good, or no longer: `interlock keys enrol NAME` gives a new one.",
            )
        return told

    async def enrolments(self) -> dict[str, Any]:
        """Who the operators are, and what of enrolments is pending: with the entry that an operator
        signs to confirm it. Raises InterlockError."""
        await self.refresh()
        chain = await asyncio.get_running_loop().run_in_executor(None, self.store.chain)
        now = self._now()

        def shown(one: PendingEnrolment) -> dict[str, Any]:
            draft = chain.draft(time=now, enrol=[one.one])
            return {
                "id": one.id,
                "name": one.one.name,
                "kind": one.one.kind,
                "key": one.one.id,
                "tools": list(one.one.tools),
                "caller": one.one.caller,
                "made": one.made,
                "recovery": one.recovery,
                "ends": self.watch.ends(one),
                "aud": draft.audience,
                "jti": SUBJECT,
                "args_sha256": draft.digest,
                "entry": draft.entry.decode(),
            }

        return {
            "now": now,
            "operators": [
                {"name": one.name, "kind": one.kind, "id": one.id} for one in self.watch.enrolled
            ],
            "pending": [shown(one) for one in self.watch.pending],
        }

    async def admit_enrolment(self, id: str, entry: str, proof: str) -> str:
        """Enrol what is pending, by an operator's proof; returns whom. Raises InterlockError."""
        raw = entry.encode()
        loop = asyncio.get_running_loop()

        def admit() -> Enrolment:
            if proof.startswith(PREFIX):
                # Which page it was made on, and whether it was copied, is checked while it is new.
                audience = self.store.chain().audience
                said = self.passkeys.check(audience, SUBJECT, digest_of(raw), proof)
                counter = said.counter
                if counter is not None and not self.store.used(said.passkey.id, counter):
                    raise InterlockError(
                        PROOF_INVALID, "This passkey was used elsewhere: it may have been copied."
                    )
            return self.store.admit(id, raw, proof)

        await self.refresh()
        one = await loop.run_in_executor(None, admit)
        await self.refresh()
        return one.name

    async def refuse_enrolment(self, id: str) -> None:
        """Forget a pending enrolment. Raises InterlockError."""
        found = await asyncio.get_running_loop().run_in_executor(None, self.store.refuse, id)
        await self.refresh()
        if not found:
            raise InterlockError(UNKNOWN_APPROVAL, "No such enrolment is pending.")

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
        self._sessions[sha256(session.encode()).digest()] = kept
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

    async def refresh(self) -> None:
        """Read who was enrolled or removed meanwhile."""
        await self.watch.look()

    def _forget_answered(self) -> None:
        """Those that are over cannot be answered again anyway."""
        now = self._clock()
        self._answered = {nonce: ends for nonce, ends in self._answered.items() if now < ends}


def operators_of(anchors: Iterable[Anchor]) -> tuple[Enrolment, ...]:
    """Operators whose keys the config names, as those who may sign the first enrolment."""
    return tuple(
        _enrolled(one.key, one.algorithms, Invitation(one.name, one.tools, one.caller))
        for one in anchors
        if one.kind == OPERATOR
    )


def enrolled_key(source: bytes | str | dict[str, Any], invitation: Invitation) -> Enrolment:
    """A public key (PEM or JWK) as something to enrol. Raises InterlockError."""
    return _enrolled(*public_key(source, invitation.name), invitation)


def _enrolled(key: Any, algorithms: tuple[str, ...], invitation: Invitation) -> Enrolment:
    return Enrolment(
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
