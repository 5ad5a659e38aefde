"""Invalid, forged, expired and foreign input is rejected between all protocol generations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from interlock.core.config import ServerConfig
from tests.behaviour.test_isolation import TOKENS, bearer
from tests.behaviour.test_protocol_matrix import call_json, complete, over_a_pipe, with_client
from tests.support.http_client import (
    META,
    STATELESS,
    HttpResponse,
    message,
    meta,
    stateless_headers,
)
from tests.support.node import NodeThread

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
EVERYTHING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ANSWER = {"action": "accept", "content": {"name": "somebody"}}
SERVERS = ("hs", "hl", "ps", "pl")

every_server = pytest.mark.parametrize("server", SERVERS)


@pytest.fixture(scope="module")
def guarded_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with complete("session", "hs") as hs, complete("stateless", "hl") as hl:
        servers = {
            "hs": ServerConfig(url=hs),
            "hl": ServerConfig(url=hl),
            "ps": over_a_pipe("session", "ps"),
            "pl": over_a_pipe("stateless", "pl"),
        }
        node = NodeThread(
            tmp_path_factory.mktemp("guarded"), workshops={}, servers=servers, tokens=TOKENS
        )
        yield node
        node.stop()


@contextmanager
def single_server(server: str) -> Iterator[dict[str, ServerConfig]]:
    """One of the servers, and no other."""
    era = "session" if server.endswith("s") else "stateless"
    if server.startswith("p"):
        yield {server: over_a_pipe(era, server)}
    else:
        with complete(era, server) as url:
            yield {server: ServerConfig(url=url)}


def ask(
    node: NodeThread,
    server: str,
    *,
    caller: str = "operator",
    tool: str = "ask",
    arguments: Any = None,
    capabilities: Any = None,
    **more: Any,
) -> HttpResponse:
    """A stateless call of a tool that asks. `more` goes into its params."""
    name = f"{server}.{tool}"
    params = {"name": name, "arguments": {"kind": "form"} if arguments is None else arguments}
    said = meta(
        **{META + "clientCapabilities": EVERYTHING if capabilities is None else capabilities}  # type: ignore[arg-type]
    )
    body = message("tools/call", {**params, **more, "_meta": said})
    return node.once(node.http(body, *stateless_headers("tools/call", name), bearer(caller)))


def read_input_request(answer: HttpResponse) -> tuple[str, str]:
    """The key of the one question in an answer, and the state to bring back."""
    result = answer.result
    assert result["resultType"] == "input_required", result
    (key,) = result["inputRequests"]
    return key, result["requestState"]


def assert_state_rejected(answer: HttpResponse) -> None:
    assert (answer.status, answer.error["code"]) == (400, -32602), answer
    assert answer.error["data"]["reason"] == "invalid_request_state"


# -- requestState


@every_server
def test_valid_input_completes_call(guarded_node: NodeThread, server: str) -> None:
    key, state = read_input_request(ask(guarded_node, server))
    response = ask(guarded_node, server, inputResponses={key: ANSWER}, requestState=state)
    assert "somebody" in response.result["content"][0]["text"]


@every_server
@pytest.mark.parametrize(
    "forged", ["", "x", "i1.", "i1.AAAA", "i1." + "A" * 200, '{"for": ["form"]}', 7, None, {}]
)
def test_rejects_forged_state(guarded_node: NodeThread, server: str, forged: Any) -> None:
    answer = ask(guarded_node, server, inputResponses={"form": ANSWER}, requestState=forged)
    if forged is None:
        # Nothing is nothing at all: the server asks once more, or says what is wrong with it.
        assert answer.status in (200, 400)
    else:
        assert_state_rejected(answer)


@every_server
@pytest.mark.parametrize("place", [5, -1])
def test_rejects_state_with_changed_byte(guarded_node: NodeThread, server: str, place: int) -> None:
    key, state = read_input_request(ask(guarded_node, server))
    letters = list(state)
    letters[place] = "A" if letters[place] != "A" else "B"
    if place == -1:
        letters.append("A")
    assert_state_rejected(
        ask(guarded_node, server, inputResponses={key: ANSWER}, requestState="".join(letters))
    )
    # The right one still works.
    response = ask(guarded_node, server, inputResponses={key: ANSWER}, requestState=state)
    assert response.status == 200


@every_server
def test_state_is_bound_to_caller_request_and_server(guarded_node: NodeThread, server: str) -> None:
    key, state = read_input_request(ask(guarded_node, server))
    brought: dict[str, Any] = {"inputResponses": {key: ANSWER}, "requestState": state}
    assert_state_rejected(ask(guarded_node, server, caller="auditor", **brought))
    assert_state_rejected(ask(guarded_node, server, arguments={"kind": "sampling"}, **brought))
    assert_state_rejected(ask(guarded_node, server, tool="ask_twice", arguments={}, **brought))
    for other in SERVERS:
        if other != server:
            assert_state_rejected(ask(guarded_node, other, **brought))
    assert ask(guarded_node, server, **brought).status == 200


@pytest.mark.parametrize("server", ["hs", "ps"])
def test_pending_call_is_resumed_once(guarded_node: NodeThread, server: str) -> None:
    key, state = read_input_request(ask(guarded_node, server))
    brought: dict[str, Any] = {"inputResponses": {key: ANSWER}, "requestState": state}
    assert ask(guarded_node, server, **brought).status == 200
    assert_state_rejected(ask(guarded_node, server, **brought))


@every_server
def test_rejects_expired_state(
    start_node: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with single_server(server) as servers:
        node: NodeThread = start_node(
            workshops={}, servers=servers, tokens=TOKENS, input_timeout=60.0
        )
        key, state = read_input_request(ask(node, server))
        seals = node.node.pipeline._input._seals
        now = seals._wall_clock()
        node.do(lambda: monkeypatch.setattr(seals, "_wall_clock", lambda: now + 61.0))
        assert_state_rejected(ask(node, server, inputResponses={key: ANSWER}, requestState=state))


@pytest.mark.parametrize("server", ["hs", "ps"])
def test_rejects_incomplete_or_malformed_input_response(
    guarded_node: NodeThread, server: str
) -> None:
    key, state = read_input_request(ask(guarded_node, server))
    wrong: Any
    for wrong in ([], "x", {key: "text"}, {key: None}):
        answer = ask(guarded_node, server, inputResponses=wrong, requestState=state)
        assert (answer.status, answer.error["code"]) == (400, -32602)
    again, state = read_input_request(
        ask(guarded_node, server, inputResponses={"other": ANSWER}, requestState=state)
    )
    response = ask(
        guarded_node, server, inputResponses={again: ANSWER, "other": ANSWER}, requestState=state
    )
    assert "somebody" in response.result["content"][0]["text"]


# -- capabilities


@pytest.mark.parametrize("server", ["hl", "pl"])
@pytest.mark.parametrize(
    ("kind", "able", "required"),
    [
        ("sampling", FORM, {"sampling": {}}),
        ("form", {}, {"elicitation": {}}),
        ("form", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("url", FORM, {"elicitation": {"url": {}}}),
        ("url", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("roots", FORM, {"roots": {}}),
    ],
)
def test_missing_capability_is_reported(
    guarded_node: NodeThread, server: str, kind: str, able: Any, required: Any
) -> None:
    answer = ask(guarded_node, server, arguments={"kind": kind}, capabilities=able)
    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"]["requiredCapabilities"] == required


@pytest.mark.parametrize("server", ["hs", "ps"])
def test_later_client_request_without_capability_fails(
    guarded_node: NodeThread, server: str
) -> None:
    """What was promised holds for every question of a call, not only for the first."""
    first = ask(guarded_node, server, tool="ask_twice", arguments={}, capabilities=FORM)
    key, state = read_input_request(first)
    response = ask(
        guarded_node, server, tool="ask_twice", arguments={}, capabilities=FORM,
        inputResponses={key: ANSWER}, requestState=state,
    )  # fmt: skip
    data = json.loads(response.result["content"][0]["text"])
    assert data["form"]["action"] == "accept"
    assert data["sampling"]["error"] in (-32601, -32602, -32600)


@pytest.mark.parametrize("server", ["hs", "ps"])
def test_empty_elicitation_capability_means_forms(guarded_node: NodeThread, server: str) -> None:
    key, state = read_input_request(ask(guarded_node, server, capabilities={"elicitation": {}}))
    response = ask(
        guarded_node, server, capabilities={"elicitation": {}},
        inputResponses={key: ANSWER}, requestState=state,
    )  # fmt: skip
    assert "somebody" in response.result["content"][0]["text"]


@every_server
def test_rejection_by_session_client_reaches_server(server: str, start_node: Any) -> None:
    """There is no word for it on the stateless wire: there the call ends with it."""

    async def refuse(context: Any, params: Any) -> Any:
        return types.ErrorData(code=-1, message="The user said no.")

    async def body(client: Client) -> None:
        if server in ("hs", "ps"):
            result = await call_json(client, f"{server}.ask", kind="sampling")
            assert result["sampling"] == {"error": -1, "message": "The user said no."}
        else:
            with pytest.raises(Exception, match=r"The user said no\."):
                await client.call_tool(f"{server}.ask", {"kind": "sampling"})
        # Nobody waits for it any more.
        assert not list(node.node.pipeline.running_calls())

    with single_server(server) as servers:
        node: NodeThread = start_node(workshops={}, servers=servers)
        with_client(node, "http", "legacy", body, sampling_callback=refuse)


# -- before anything reaches a server


@every_server
def test_rejects_contradicting_headers(guarded_node: NodeThread, server: str) -> None:
    other = next(item for item in SERVERS if item != server)
    body = message("tools/call", {"name": f"{server}.recall", "arguments": {}, "_meta": meta()})
    for headers in (
        stateless_headers("tools/call", f"{other}.recall"),
        stateless_headers("prompts/get", f"{server}.recall"),
        stateless_headers("tools/call"),
        [("MCP-Protocol-Version", STATELESS), ("Mcp-Name", f"{server}.recall")],
    ):
        answer = guarded_node.once(guarded_node.http(body, *headers, bearer("operator")))
        assert (answer.status, answer.error["code"]) == (400, -32020)
    read = message("resources/read", {"uri": f"note://{server}/own", "_meta": meta()})
    headers = stateless_headers("resources/read", f"note://{other}/own")
    answer = guarded_node.once(guarded_node.http(read, *headers, bearer("operator")))
    assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.spec("ST-4.4.2-12")
def test_rejects_unknown_protocol_version(guarded_node: NodeThread) -> None:
    said = meta("2031-01-01")
    body = message("tools/call", {"name": "hs.recall", "arguments": {}, "_meta": said})
    headers = [
        ("MCP-Protocol-Version", "2031-01-01"),
        *stateless_headers("tools/call", "hs.recall")[1:],
    ]
    answer = guarded_node.once(guarded_node.http(body, *headers, bearer("operator")))
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert STATELESS in answer.error["data"]["supported"]
    assert answer.error["data"]["requested"] == "2031-01-01"


@pytest.mark.parametrize(
    "method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
)
def test_rejects_invalid_cursors(start_node: Any, method: str) -> None:
    with complete("session", "hs") as hs:
        node: NodeThread = start_node(
            workshops={}, servers={"hs": ServerConfig(url=hs)}, page_size=1
        )
        session = node.session()
        first = node.once(session.request(method)).result
        if method != "resources/templates/list":
            cursor = first["nextCursor"]
            assert node.once(session.request(method, {"cursor": cursor})).status == 200
            # It belongs to the list that it came with.
            other = "tools/list" if method != "tools/list" else "prompts/list"
            answer = node.once(session.request(other, {"cursor": cursor}))
            assert answer.error["code"] == -32602
        for forged in ("", "1", "x" * 300):
            answer = node.once(session.request(method, {"cursor": forged}))
            assert answer.error["code"] == -32602
            answer = node.once(node.stateless(method, {"cursor": forged}))
            assert (answer.status, answer.error["code"]) == (400, -32602)


def test_rejects_unknown_sessions_and_events(guarded_node: NodeThread) -> None:
    mine = guarded_node.session("2025-11-25", bearer("operator"))
    for forged in ("x", mine.id + "x", mine.id[:-1]):
        headers = [("Mcp-Session-Id", forged), bearer("operator")]
        for request in (
            guarded_node.http(message("ping"), *headers),
            guarded_node.http(b"", *headers, method="GET"),
            guarded_node.http(b"", *headers, method="DELETE"),
        ):
            assert guarded_node.once(request).status == 404
    for event in ("x", "0", "999999", f"{mine.id}:1"):
        answer = guarded_node.once(mine.get(("Last-Event-ID", event)))
        assert answer.status in (400, 404), event
    assert guarded_node.once(mine.request("ping")).status == 200


def test_rejects_unknown_log_level(guarded_node: NodeThread) -> None:
    session = guarded_node.session("2025-11-25", bearer("operator"))
    for level in ("loud", "", 5, None):
        answer = guarded_node.once(session.request("logging/setLevel", {"level": level}))
        assert answer.error["code"] == -32602


def test_disconnecting_client_cancels_call(guarded_node: NodeThread) -> None:
    """On the stateless wire that is a cancellation, also for who was to be asked."""
    name = "hs.wait"
    body = message("tools/call", {"name": name, "arguments": {"name": "hung-up"}, "_meta": meta()})
    with guarded_node.connect() as wire:
        wire.send(
            guarded_node.http(body, *stateless_headers("tools/call", name), bearer("auditor"))
        )
        guarded_node.until(
            lambda: list(guarded_node.node.pipeline.running_calls()), "it is under way"
        )
    guarded_node.until(lambda: not list(guarded_node.node.pipeline.running_calls()), "it is over")
