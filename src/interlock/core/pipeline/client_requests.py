"""May this be asked of the caller? What an upstream wants to know, held against what was promised.

An upstream may ask its caller for a sample of its model, for the answers to a form, or for its
roots. It may do so only of a client that said it can, and only where the config lets it. What was
asked, and what came of it, is written down.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientResponse,
    ClientSession,
    Outcome,
    UpstreamResponseError,
)
from interlock.core.deferred_request import PendingRequestBase
from interlock.core.journal.audit import ANSWERED, ASKED, REFUSED, WITHDRAWN, Audit
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.errors import (
    DEADLINE_EXCEEDED,
    FORBIDDEN,
    MISSING_CLIENT_CAPABILITY,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.primitives.backoff import exponential_delay
from interlock.protocol.input_required import (
    INPUT_RESPONSES,
    REQUEST_STATE,
    InputRequest,
    read_input_request,
    to_session_params,
    write_input_request,
)
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import CLIENT_REQUESTS, ELICITATION, SAMPLING, TASKS_EXTENSION, Era

_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602
_REFUSED: Final = -1
"""What a client says when its user did not want to."""
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})

_log = logging.getLogger("interlock.pipeline")


class ClientRequestPolicy(msgspec.Struct, frozen=True):
    """What the servers behind a node may ask of its callers."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    max_tokens: int | None = None
    """More tokens than this are not sampled at once, whatever the server asks for."""


ALLOW_ALL: Final = ClientRequestPolicy()


class ClientRequestRefusal(msgspec.Struct, frozen=True):
    """Why a question is not put, in the words of JSON-RPC."""

    code: int
    message: str
    missing: dict[str, Any] | None = None
    """The capability that the client would need, as the client would declare it."""

    def as_error(self) -> InterlockError:
        """What a caller is told whose request was answered with such a question."""
        if self.missing is not None:
            data = {"requiredCapabilities": self.missing}
            return InterlockError(MISSING_CLIENT_CAPABILITY, self.message, data)
        if self.code == _REFUSED:
            return InterlockError(FORBIDDEN, self.message)
        return InterlockError(UPSTREAM_PROTOCOL, f"The server asks what it cannot: {self.message}")


class ClientRequestFilter:
    """Looks at questions before they are put. `policy` is asked for by the upstream's key."""

    def __init__(
        self, policy: Callable[[str], ClientRequestPolicy], audit: Audit, clock: Clock
    ) -> None:
        self._policy = policy
        self._audit = audit
        self._clock = clock

    def follow(
        self,
        ask: ClientRequest,
        call: Call | None,
        session: ClientSession | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write down what comes of a question. `then` is run when it is over."""
        began = self._clock()

        def over(answer: ClientResponse | str) -> None:
            if isinstance(answer, str):
                outcome, detail = WITHDRAWN, answer
            elif answer.is_error:
                outcome, detail = REFUSED, answer.message
            else:
                outcome, detail = ANSWERED, _action(ask.method, answer.result)
            self._write(ask, call, session, outcome, began, detail)
            if then is not None:
                then()

        ask.on_end = over

    def passed_on(self, ask: ClientRequest, call: Call) -> None:
        """Write down a question that its server is answered in another request."""
        self._write(ask, call, None, ASKED, self._clock(), "")

    def _write(
        self,
        ask: ClientRequest,
        call: Call | None,
        session: ClientSession | None,
        outcome: str,
        began: float,
        detail: str,
    ) -> None:
        caller = "" if session is None else session.owner
        face = about = ""
        if call is not None:
            caller = caller if call.caller is None else call.caller.name
            face, about = call.server, call.name if call.route is None else call.route.canonical
        try:
            self._audit.record_question(
                ask.method,
                caller=caller,
                face=face,
                about=about,
                upstream=ask.upstream,
                outcome=outcome,
                duration_us=int((self._clock() - began) * 1e6),
                detail=detail,
            )
        except Exception:
            # The answer is waited for, whatever the journal is up to.
            _log.exception("%.100r could not be recorded", ask.method)

    def look_at(
        self, ask: ClientRequest, client: Client, upstream: str
    ) -> ClientRequestRefusal | None:
        """None: it may be put, within the limits that it has now."""
        capability = CLIENT_REQUESTS.get(ask.method)
        if capability is None:
            return ClientRequestRefusal(
                _METHOD_NOT_FOUND, f"{ask.method} is not something to ask a client."
            )
        policy = self._policy(upstream)
        if not getattr(policy, capability):
            return ClientRequestRefusal(
                _REFUSED, f"This node does not let servers ask for {capability}."
            )
        try:
            params = decode_members(ask.params) if ask.params else {}
        except ProtocolError:
            return ClientRequestRefusal(_INVALID_PARAMS, "`params` must be an object.")
        lacking = _lacking(ask.method, params, capabilities_of(client.capabilities))
        if lacking is not None:
            return lacking
        if ask.method == SAMPLING and policy.max_tokens is not None:
            _cap(ask, params, policy.max_tokens)
        return None


def probe_request(method: str, params: bytes, upstream: str) -> ClientRequest:
    """A question that is answered elsewhere, and only held against the rules here."""
    return ClientRequest(method, params, _nowhere, upstream)


def _nowhere(answer: ClientResponse) -> None:
    """The answer comes in another request."""


@lru_cache(maxsize=4096)
def capabilities_of(raw: bytes) -> dict[str, Any]:
    """What a client can do. What cannot be read counts as nothing."""
    try:
        said = decode_value(raw)
    except ProtocolError:
        return {}
    return said if isinstance(said, dict) else {}


def supports_tasks(client: Client) -> bool:
    """Whether the client can be given a task in place of an answer."""
    extensions = capabilities_of(client.capabilities).get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def shared_capabilities(call: Call, offered: Mapping[str, Any]) -> bool:
    """Whether client and server know an extension that a method unknown here may belong to."""
    declared = capabilities_of(call.client.capabilities)
    extensions, theirs = declared.get("extensions"), offered.get("extensions")
    if not isinstance(extensions, dict) or not isinstance(theirs, dict):
        return False
    # Tasks are known here: whatever is not, does not belong to them.
    return bool(extensions.keys() & theirs.keys() - {TASKS_EXTENSION})


def _lacking(
    method: str, params: dict[str, Raw], declared: dict[str, Any]
) -> ClientRequestRefusal | None:
    capability = CLIENT_REQUESTS[method]
    able = declared.get(capability)
    mode = _text(params.get("mode")) or "form"
    if not isinstance(able, dict):
        by_url = method == ELICITATION and mode == "url"
        missing: dict[str, Any] = {capability: {"url": {}} if by_url else {}}
        return ClientRequestRefusal(
            _METHOD_NOT_FOUND, f"The client does not support {capability}.", missing
        )
    if method == SAMPLING and ("tools" in params or "toolChoice" in params) and "tools" not in able:
        missing = {"sampling": {"tools": {}}}
        return ClientRequestRefusal(
            _INVALID_PARAMS, "The client does not sample with tools.", missing
        )
    # To name no mode at all is the old way to say `form`.
    if method == ELICITATION and mode not in able and not (mode == "form" and "url" not in able):
        if mode not in ("form", "url"):
            return ClientRequestRefusal(
                _INVALID_PARAMS, f"There is no elicitation by {mode[:20]!r}."
            )
        missing = {"elicitation": {mode: {}}}
        return ClientRequestRefusal(
            _INVALID_PARAMS, f"The client does not support elicitation by {mode}.", missing
        )
    return None


def _cap(ask: ClientRequest, params: dict[str, Raw], most: int) -> None:
    try:
        wanted = decode_value(params["maxTokens"])
    except (KeyError, ProtocolError):
        wanted = None
    if not isinstance(wanted, int | float) or isinstance(wanted, bool) or wanted > most:
        params["maxTokens"] = Raw(b"%d" % most)
        ask.params = encode_members(params)


def _action(method: str, result: bytes) -> str:
    """What somebody did with a form: that much of an answer is no secret."""
    if method != ELICITATION:
        return ""
    try:
        action = _text(decode_members(result).get("action"))
    except ProtocolError:
        return ""
    return action if action in _ACTIONS else ""


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        value = decode_value(raw)
    except ProtocolError:
        return None
    return value if isinstance(value, str) else None


# -- A stateless client in front of a session server: calls that wait for the client to come back.
#
# A session server asks in the middle of a call and waits for the answer. A stateless client
# cannot be asked: its request is answered with the question, while the call to the server stays
# open, held under a handle that the client brings back with its answer. Who brings it, and with
# which request, is in the seal around the handle. What is not fetched in time is given up, and
# the server told so.

MAX_SUSPENDED_CALLS: Final = 10_000
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."


class SuspendedCall:
    """One call that waits. It is the way back for its server until somebody fetches it."""

    def __init__(
        self, call: Call, back: ResponseHandler, may_be_put: Callable[[ClientRequest], bool]
    ) -> None:
        """`may_be_put` looks at every further question, and refuses what may not be asked."""
        self.handle = ""
        assert call.upstream_request is not None
        self.exchange: UpstreamRequest = call.upstream_request
        self.until = 0.0
        self.waiting: Call | None = call
        """The call for as long as its client has not been told: until then nothing is held back."""
        self.asks: dict[str, ClientRequest] = {}
        self.over: tuple[Outcome | None, InterlockError | None] | None = None
        """What became of it while nobody waited."""
        self._back = back
        self._may_be_put = may_be_put
        self._asked = 0

    def add(self, ask: ClientRequest) -> None:
        self._asked += 1
        self.asks[f"input-{self._asked}"] = ask

    def open_questions(self) -> dict[str, tuple[str, bytes]]:
        """What nobody has answered, and the server still wants to know."""
        return {key: (ask.method, ask.params) for key, ask in self.asks.items() if ask.is_open}

    def answer(self, answers: dict[str, Raw]) -> None:
        for key, answer in answers.items():
            ask = self.asks.get(key)
            if ask is not None:
                ask.respond(answer)
        self.asks = {key: ask for key, ask in self.asks.items() if ask.is_open}

    def look_again(self, may_be_put: Callable[[ClientRequest], bool]) -> None:
        """Somebody else waits now: what it may not be asked is refused."""
        self._may_be_put = may_be_put
        for ask in list(self.asks.values()):
            if ask.is_open:
                may_be_put(ask)

    def give_up(self, reason: str) -> None:
        """Nobody will answer, and nobody waits: the server is told both. Never raises."""
        try:
            for ask in self.asks.values():
                ask.reject(-32603, reason)
            if self.over is None:
                self.exchange.abandon(reason)
        except Exception:
            # A link in a bad way must not keep the others from being given up.
            _log.exception("a server could not be told that a call is given up")

    # -- Back

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            self.over = (outcome, error)
        else:
            # It has answered after all, before anybody was asked.
            self._back.on_result(waiting, outcome, error)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if self.waiting is not None:
            self._back.on_notification(self.waiting, method, params)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        if self._may_be_put(ask):
            self.add(ask)


class SuspendedCalls:
    """Every call that waits for its client."""

    def __init__(
        self,
        *,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self.seconds = seconds
        """How long a client may take to come back."""
        self._held: dict[str, SuspendedCall] = {}
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether no more calls can be held."""
        return len(self._held) >= MAX_SUSPENDED_CALLS

    def keep(self, held: SuspendedCall) -> None:
        """Keep it under a new handle: one that was used is never good again."""
        held.handle = secrets.token_urlsafe(18)
        held.until = self._clock() + self.seconds
        self._held[held.handle] = held
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP, self._sweep)

    def fetch(self, handle: str) -> SuspendedCall | None:
        """The call with this handle, which is nobody else's to fetch from then on."""
        return self._held.pop(handle, None)

    def drop_all(self, reason: str) -> None:
        held, self._held = self._held, {}
        for one in held.values():
            one.give_up(reason)

    def _sweep(self) -> None:
        now = self._clock()
        for handle in [handle for handle, one in self._held.items() if one.until <= now]:
            self._held.pop(handle).give_up(_GONE)
        self._sweeping = bool(self._held)
        if self._sweeping:
            self._call_later(_SWEEP, self._sweep)


def input_required_outcome(held: SuspendedCall, state: str) -> Outcome:
    """The answer that asks the client."""
    return Outcome(write_input_request(held.open_questions(), state), Era.STATELESS)


# -- A session client in front of a session server: questions are put as they come.
#
# The call stays open while its client is asked. People are asked there, so the deadline is theirs
# for that long, and a server is not to blame when nobody answers.

MAX_CLIENT_REQUESTS: Final = 100
"""In one call: a server that asks and asks must not keep it open for ever."""
_LATE: Final = "The deadline has passed."
_AFTER_ITS_CALL: Final = 5.0
"""A call that waits for an answer ends by its own deadline first."""
_NOT_ANSWERED: Final = "The question was not answered in time."


class ClientRequestRelay:
    """Puts questions to clients that can be asked while they wait."""

    def __init__(
        self,
        *,
        questions: ClientRequestFilter,
        wait: Callable[[Call], None],
        go_on: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._questions = questions
        self._call_later = call_later
        self._seconds = seconds
        self._wait = wait
        self._go_on = go_on
        self._fail = fail

    def put(self, ask: ClientRequest, call: Call | None, session: ClientSession | None) -> None:
        """Put a question that may be put."""
        asked = session
        if call is not None:
            call.input_rounds += 1
            if call.input_rounds > MAX_CLIENT_REQUESTS:
                ask.reject(-32603, f"More than {MAX_CLIENT_REQUESTS} questions in one call.")
                return
        # Also when its call is long over: a client that never answers holds nobody up.
        end = self._call_later(
            self._seconds + _AFTER_ITS_CALL, lambda: ask.fail(-32603, _NOT_ANSWERED)
        )
        if call is None or call.upstream_request is None:
            self._questions.follow(ask, call, session, end.cancel)
        else:
            asked = call.session or session
            over = self._asking(call).add()

            def then() -> None:
                # A server that asks and takes back must not fill the memory with timers.
                end.cancel()
                over()

            self._questions.follow(ask, call, asked, then)
            self._wait(call)
        if asked is None or not asked.send_request(ask, call):
            ask.reject(-32603, "There is no way to the client now.")

    def _asking(self, call: Call) -> ClientInputWait:
        exchange = call.upstream_request
        if isinstance(exchange, ClientInputWait):
            return exchange
        assert exchange is not None
        call.upstream_request = asking = ClientInputWait(call, exchange, self._go_on, self._fail)
        return asking


class ClientInputWait:
    """Stands for the request of a call whose client is being asked."""

    def __init__(
        self,
        call: Call,
        exchange: UpstreamRequest,
        go_on: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
    ) -> None:
        self._call = call
        self._exchange = exchange
        self._go_on = go_on
        self._fail = fail
        self._questions = 0

    def add(self) -> Callable[[], None]:
        """Another question. Returns what tells that it is over."""
        self._questions += 1
        return self._over

    def _over(self) -> None:
        self._questions -= 1
        if self._questions == 0 and self._call.upstream_request is self:
            self._call.upstream_request = self._exchange
            self._go_on(self._call)

    @property
    def is_open(self) -> bool:
        return self._exchange.is_open

    def abandon(self, reason: str) -> None:
        self._exchange.abandon(reason)

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self._exchange.reassign(call, back)

    def expire(self) -> None:
        call = self._call
        self._exchange.abandon(_LATE)
        self._fail(
            call,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"{call.upstream} asked for input that did not come in time.",
                {"upstream": call.upstream},
            ),
        )


# -- A session client in front of a stateless server: the server's questions, put one by one.
#
# A stateless server that needs to know something answers with its questions, and expects the same
# request again with the answers. A session client is asked them while its call stays open; then
# the request is made again, and so on, up to a limit. A server that only hands out state ("try
# again with this") gets its request again after a short wait.

MAX_INPUT_ROUNDS: Final = 10
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 0.25


class InputRounds:
    """Takes calls whose server wants to know something, and sends them again with the answers."""

    def __init__(
        self,
        *,
        questions: ClientRequestFilter,
        send: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._questions = questions
        self._send = send
        self._fail = fail
        self._call_later = call_later

    def another(self, call: Call, result: bytes) -> None:
        """The server asks. Raises InterlockError when the call cannot go on."""
        call.input_rounds += 1
        if call.input_rounds > MAX_INPUT_ROUNDS:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{call.upstream} still wants to know more after {MAX_INPUT_ROUNDS} rounds.",
            )
        needed = read_input_request(result)
        call.upstream_request = exchange = InputRound(self, call, needed)
        if needed.questions:
            exchange.put(self._questions)
        else:
            wait = exponential_delay(call.input_rounds - 1, _FIRST_WAIT, _LONGEST_WAIT)
            self._call_later(wait, exchange.go_on)

    def go_on(self, call: Call, needed: InputRequest, answers: dict[str, Raw]) -> None:
        """Everything is answered: make the request again."""
        given = dict(call.extra_params or {})
        given.pop(INPUT_RESPONSES, None)
        given.pop(REQUEST_STATE, None)
        if needed.questions:
            given[INPUT_RESPONSES] = Raw(encode_members(answers))
        if needed.state is not None:
            given[REQUEST_STATE] = Raw(encode_value(needed.state))
        call.extra_params = given or None
        self._send(call)

    def stop(self, call: Call, error: InterlockError) -> None:
        self._fail(call, error)


class InputRound(PendingRequestBase):
    """One round: stands for the request while its caller is being asked."""

    def __init__(self, rounds: InputRounds, call: Call, needed: InputRequest) -> None:
        self._rounds = rounds
        self._call = call
        self._needed = needed
        self._answers: dict[str, Raw] = {}
        self._asks: list[ClientRequest] = []
        self.is_open = True

    def put(self, questions: ClientRequestFilter) -> None:
        call = self._call
        session = call.session
        for key, (method, params) in self._needed.questions.items():
            worded = to_session_params(
                method, params, call.client.revision, secrets.token_urlsafe(12)
            )
            ask = ClientRequest(method, worded, self._taker(key), call.upstream)
            questions.follow(ask, call, session)
            refusal = questions.look_at(ask, call.client, call.upstream)
            if refusal is not None:
                self.is_open = False
                ask.reject(refusal.code, refusal.message)
                raise UpstreamResponseError(refusal.code, refusal.message, None)
            self._asks.append(ask)
        for ask in self._asks:
            if not self.is_open:
                return
            if session is None or not session.send_request(ask, call):
                self._end("There is no way to the client.")
                raise InterlockError(
                    UPSTREAM_PROTOCOL,
                    f"{call.upstream} asks its caller for input, and the client cannot be reached "
                    "for that.",
                )

    def _taker(self, key: str) -> Callable[[ClientResponse], None]:
        def take(answer: ClientResponse) -> None:
            if not self.is_open:
                return
            if answer.is_error:
                # The server cannot be told of a refusal on its wire: the call ends with it.
                self._end("Another question was refused.")
                error = UpstreamResponseError(answer.code, answer.message, answer.data)
                self._rounds.stop(self._call, error)
                return
            if answer.result[:1] != b"{":
                self._end("Another question was not answered.")
                message = "The client's answer to the server's question is not an object."
                self._rounds.stop(self._call, UpstreamResponseError(-32602, message, None))
                return
            self._answers[key] = Raw(answer.result)
            if len(self._answers) == len(self._needed.questions):
                self.go_on()

        return take

    def go_on(self) -> None:
        if self.is_open:
            self.is_open = False
            self._rounds.go_on(self._call, self._needed, self._answers)

    def _end(self, reason: str) -> None:
        self.is_open = False
        for ask in self._asks:
            ask.withdraw(reason)

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self._end(reason)

    def expire(self) -> None:
        if self.is_open:
            self._end("The deadline has passed.")
            self._rounds.stop(
                self._call,
                InterlockError(
                    DEADLINE_EXCEEDED,
                    f"{self._call.upstream} asked for input that did not come in time.",
                    {"upstream": self._call.upstream},
                ),
            )
