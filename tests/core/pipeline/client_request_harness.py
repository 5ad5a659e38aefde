"""Upstreams that send client requests, and clients that answer them, in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from interlock.core.call import (
    Call,
    Caller,
    Client,
    ClientRequest,
    ClientResponse,
    Credentials,
    Outcome,
    UpstreamResponseError,
)
from interlock.core.catalog.offering import Offering
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.pipeline.client_requests import ALLOW_ALL, ClientRequestPolicy
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import ResponseHandler, Upstream, UpstreamRequest
from interlock.errors import InterlockError
from interlock.protocol.mcp import ELICITATION, ROOTS, SAMPLING, TOOLS_CALL, Era, summarize_result
from interlock.trust.authorization import Authorizer
from interlock.trust.budgets import Budgets
from tests.support.calls import LOCAL
from tests.support.offerings import definition, offer, prompt, resource
from tests.support.pipeline import PipelineHarness, ScriptedRequest, ScriptedUpstream

KEY = b"k" * 32
GROUPING_SECONDS = 0.05
"""Longer than the one in which questions are gathered."""
EVERYTHING: dict[str, Any] = {
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
FORM = {"message": "Really?", "requestedSchema": {"type": "object", "properties": {}}}
URL = {"mode": "url", "message": "Go there.", "url": "https://example.org/go"}
SAMPLE = {"messages": [], "maxTokens": 100}
YES = {"action": "accept", "content": {}}
OPERATOR = Credentials("192.0.2.1", "operator-token")
AUDITOR = Credentials("192.0.2.2", "auditor-token")
TOKENS = {"operator-token": "operator", "auditor-token": "auditor"}


def stateless(capabilities: Any = EVERYTHING) -> Client:
    return Client(Era.STATELESS, "2026-07-28", "tests", json.dumps(capabilities).encode())


class Question:
    """A client request of an upstream, and its response."""

    def __init__(self, ask: ClientRequest, answers: list[ClientResponse]) -> None:
        self.ask = ask
        self._answers = answers

    @property
    def result(self) -> Any:
        """Return the result."""
        [answer] = self._answers
        assert not answer.is_error, answer.message
        return json.loads(answer.result)

    @property
    def rejection(self) -> tuple[int, str]:
        [response] = self._answers
        assert response.is_error
        return response.code, response.message

    @property
    def is_pending(self) -> bool:
        return not self._answers


class InteractiveRequest(ScriptedRequest):
    """A request of a server that may send client requests first."""

    def __init__(self, call: Call, back: ResponseHandler) -> None:
        super().__init__(call, back)
        self.questions: list[Question] = []

    def ask(self, method: str = ELICITATION, params: Any = None) -> Question:
        """Send a client request, like a session server."""
        responses: list[ClientResponse] = []
        if params is None:
            params = {ELICITATION: FORM, SAMPLING: SAMPLE, ROOTS: None}[method]
        raw = b"" if params is None else json.dumps(params).encode()
        ask = ClientRequest(method, raw, responses.append, self.call.upstream)
        client_request = Question(ask, responses)
        self.questions.append(client_request)
        self.back.on_request(ask, self.call, self.call.session)
        return client_request

    def require_input(
        self, client_requests: dict[str, Any] | None = None, state: str | None = None, **more: Any
    ) -> None:
        """Return `input_required`. `questions`: method and params by key."""
        result: dict[str, Any] = {"resultType": "input_required", **more}
        if client_requests is not None:
            result["inputRequests"] = {
                key: {"method": method} if params is None else {"method": method, "params": params}
                for key, (method, params) in client_requests.items()
            }
        if state is not None:
            result["requestState"] = state
        raw = Raw(json.dumps(result).encode())
        self._settle(Outcome(bytes(raw), Era.STATELESS, summarize_result(raw)), None)

    def require_url(self, *elicitations: Any) -> None:
        """Fail with URL elicitations, like a session server."""
        data = Raw(json.dumps({"elicitations": list(elicitations)}).encode())
        self.fail(UpstreamResponseError(-32042, "Sign in first.", data))

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self._withdraw(reason)
        super().abandon(reason)

    def _settle(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        if self.is_open:
            self._withdraw("The request is answered.")
        super()._settle(outcome, error)

    def _withdraw(self, reason: str) -> None:
        # As a real one: nobody waits for what was asked on the way any more.
        for client_request in self.questions:
            client_request.ask.withdraw(reason)

    def read_param(self, member: str) -> Any:
        """Return a member of the params that the node added to the request."""
        raw = (self.call.extra_params or {}).get(member)
        return None if raw is None else json.loads(bytes(raw))


class InteractiveUpstream(ScriptedUpstream):
    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        if self.refuse_with is not None:
            raise self.refuse_with
        exchange = InteractiveRequest(call, back)
        # What was sent, as it was then: the call goes on to change.
        self.sent.append(dict(call.extra_params or {}))
        self.started.append(exchange)
        return exchange

    def __init__(self, key: str, timeout: float | None = None) -> None:
        super().__init__(key, timeout)
        self.sent: list[dict[str, Raw]] = []

    @property
    def last(self) -> InteractiveRequest:
        exchange = super().last
        assert isinstance(exchange, InteractiveRequest)
        return exchange

    @property
    def last_sent(self) -> dict[str, Any]:
        return {key: json.loads(bytes(raw)) for key, raw in self.sent[-1].items()}


class ScriptedSession:
    """A session client whose responses the test sends."""

    def __init__(
        self, capabilities: Any = EVERYTHING, revision: str = "2025-11-25", owner: str = "local"
    ) -> None:
        raw = json.dumps(capabilities).encode()
        self.client = Client(Era.SESSION, revision, "tests", raw)
        self.owner = owner
        self.is_alive = True
        self.log_level: str | None = None
        self.on_close: list[Callable[[], None]] = []
        self.on_roots_changed: list[Callable[[], None]] = []
        self.reachable = True
        self.client_requests: list[ClientRequest] = []
        self.withdrawn: list[tuple[ClientRequest, str]] = []
        self.updates: list[str] = []

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        raise AssertionError("Nothing is told outside of calls here.")

    def send_resource_update(self, uri: str) -> None:
        self.updates.append(uri)

    def send_request(self, ask: ClientRequest, call: Call | None) -> bool:
        if not self.reachable:
            return False
        ask.on_withdraw = lambda ask, reason: self.withdrawn.append((ask, reason))
        self.client_requests.append(ask)
        return True

    @property
    def last(self) -> ClientRequest:
        return self.client_requests[-1]

    @property
    def last_params(self) -> Any:
        return json.loads(self.last.params) if self.last.params else None


class ClientRequestHarness(PipelineHarness):
    """A pipeline with one upstream `s` that sends client requests."""

    def __init__(
        self,
        *offerings: Offering,
        policy: ClientRequestPolicy = ALLOW_ALL,
        key: bytes = KEY,
        seconds: float = 600.0,
        timeout: float = 60.0,
        **settings: Any,
    ) -> None:
        look = definition("look", annotations={"readOnlyHint": True})
        usual = offer(
            "s",
            ["t", look],
            prompts=[prompt("p")],
            resources=[resource("test://r")],
        )
        super().__init__(*(offerings or (usual,)), timeout=timeout, tokens=TOKENS, **settings)
        for name in self.upstreams:
            self.upstreams[name] = InteractiveUpstream(name)
            self.upstreams[name].capabilities = {
                "prompts": {}, "completions": {}, "logging": {}, "resources": {"subscribe": True},
            }  # fmt: skip
        self.policy = policy
        self.wall = 1_700_000_000.0
        seen_by_the_pipeline: dict[str, Upstream] = self.upstreams  # type: ignore[assignment]
        self.authorizer = Authorizer(self.catalog, Budgets(self.clock))
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=Authenticator({t: Caller(name) for t, name in TOKENS.items()}),
            authorizer=self.authorizer,
            breakers=self.breakers,
            upstreams=seen_by_the_pipeline,
            audit=self.audit,
            clock=self.clock,
            call_later=self.clock.call_later,
            names="auto",
            timeout=timeout,
            concurrent_calls=100,
            client_request_policy=lambda _: self.policy,
            seals=StateSealer(key, lambda: self.wall),
            input_seconds=seconds,
        )

    @property
    def s(self) -> InteractiveUpstream:
        upstream = self.upstreams["s"]
        assert isinstance(upstream, InteractiveUpstream)
        return upstream

    @property
    def held(self) -> int:
        return self.pipeline._input.suspended_count

    @property
    def last_result(self) -> Any:
        """Return the result of the call that ended last."""
        result = self.done[-1][1]
        assert not isinstance(result, InterlockError), result.message
        return result

    @property
    def last_error(self) -> InterlockError:
        error = self.done[-1][1]
        assert isinstance(error, InterlockError), error
        return error

    def list_outcomes(self) -> list[tuple[str, str]]:
        """Return method and outcome of every journal entry."""
        return [(entry["verb"], entry["outcome"]) for entry in self.journal.entries]

    def hold(self, call: Call, method: str = ELICITATION) -> Question:
        """Begin a call of a stateless client, and suspend it with a client request."""
        self.begin(call)
        client_request = self.s.last.ask(method)
        self.clock.advance(GROUPING_SECONDS)
        return client_request


def call_of(
    client: Client,
    name: str = "s.t",
    *,
    verb: str = TOOLS_CALL,
    arguments: Any = None,
    answers: Any = None,
    state: Any = None,
    **fields: Any,
) -> Call:
    """Return a request, with input responses and state of a retry."""
    extra: dict[str, Raw] = {}
    if answers is not None:
        extra["inputResponses"] = Raw(json.dumps(answers).encode())
    if state is not None:
        extra["requestState"] = Raw(json.dumps(state).encode())
    raw = arguments
    if not isinstance(raw, bytes):
        raw = json.dumps({} if arguments is None else arguments).encode()
    meta = fields.pop("meta", None)
    if meta is not None:
        fields["meta"] = {key: Raw(json.dumps(value).encode()) for key, value in meta.items()}
    fields.setdefault("credentials", LOCAL)
    return Call(
        verb,
        "test",
        client=client,
        name=name,
        arguments=Raw(raw),
        extra_params=extra or None,
        **fields,
    )
