"""A malicious model confirms its own calls with forged and reused proofs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from tests.behaviour.adversary import (
    CLIENTS,
    MODEL,
    REQUIRED,
    TOOL,
    URL_CAPABLE,
    Fortress,
    HttpSession,
    Lines,
    Stateless,
    fresh,
    open_client,
    running_fortress,
)
from tests.support.http_client import STATELESS, message

doors = pytest.mark.parametrize("which", CLIENTS)
UNENROLLED = OKPKey.generate_key("Ed25519")
Told = dict[str, Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    yield from running_fortress(tmp_path_factory.mktemp("proofs") / "node")


@pytest.fixture
def node(shared: Fortress) -> Iterator[Fortress]:
    yield shared
    shared.must_be_intact()


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(node: Fortress, told: Told, alg: str, **header: Any) -> str:
    """The right claims under a header of one's own, without the last part."""
    claims = node.proof(told, UNENROLLED).split(".")[1]
    return b64(json.dumps({"alg": alg, **header}).encode()) + "." + claims


def hmac_of(words: str, key: bytes) -> str:
    return f"{words}.{b64(hmac.digest(key, words.encode(), hashlib.sha256))}"


def public(node: Fortress) -> bytes:
    return bytes(node.keeper.as_pem(private=False))


def embedded_key(node: Fortress, told: Told) -> str:
    """Signed with a key that the proof itself brings along."""
    words = unsigned(node, told, "EdDSA", jwk=UNENROLLED.as_dict(private=False), kid="keeper")
    assert isinstance(UNENROLLED.private_key, Ed25519PrivateKey)
    signature = UNENROLLED.private_key.sign(words.encode())
    return f"{words}.{b64(signature)}"


def other_claims(**changes: Any) -> Callable[[Fortress, Told], str]:
    return lambda node, told: node.proof(told, **changes)


def other_times(**seconds: int) -> Callable[[Fortress, Told], str]:
    """Claims that are so many seconds from the moment at which the proof is made."""
    return lambda node, told: node.proof(
        told, **{claim: int(time.time()) + offset for claim, offset in seconds.items()}
    )


FORGERIES: dict[str, Callable[[Fortress, Told], Any]] = {
    "nothing": lambda node, told: "",
    "null": lambda node, told: None,
    "true": lambda node, told: True,
    "a list": lambda node, told: ["approve"],
    "the id": lambda node, told: told["confirmation_id"],
    "the nonce": lambda node, told: told["nonce"],
    "the digest": lambda node, told: told["args_sha256"],
    "the word": lambda node, told: "approve",
    "the url": lambda node, told: told.get("url", "x"),
    "its own token": lambda node, told: MODEL,
    "a key of its own": lambda node, told: node.proof(told, UNENROLLED),
    "a key of its own called keeper": embedded_key,
    "its own key, an anchor": lambda node, told: node.proof(told, node.own),
    "an engine for other tools": lambda node, told: node.proof(
        told, node.engine, nonce=told["nonce"]
    ),
    "alg none": lambda node, told: unsigned(node, told, "none") + ".",
    "alg NONE, signed with nothing": lambda node, told: unsigned(node, told, "NONE") + ".AA",
    "no alg": lambda node, told: unsigned(node, told, "") + ".AA",
    "HS256 with the public key": lambda node, told: hmac_of(
        unsigned(node, told, "HS256"), public(node)
    ),
    "HS256 with its own token": lambda node, told: hmac_of(
        unsigned(node, told, "HS256"), MODEL.encode()
    ),
    "HS256 with nothing": lambda node, told: hmac_of(unsigned(node, told, "HS256"), b""),
    "RS256": lambda node, told: unsigned(node, told, "RS256") + ".AA",
    "crit": lambda node, told: unsigned(node, told, "EdDSA", crit=["b64"], b64=False) + ".AA",
    "a signature of zeros": lambda node, told: unsigned(node, told, "EdDSA") + "." + b64(bytes(64)),
    "two parts": lambda node, told: unsigned(node, told, "EdDSA"),
    "a passkey": lambda node, told: "passkey:" + b64(b'{"id":"x"}'),
    "an empty passkey": lambda node, told: "passkey:",
    "another kind": lambda node, told: "local:" + node.proof(told),
    "too long": lambda node, told: node.proof(told) + "A" * 20_000,
    "with a tail": lambda node, told: node.proof(told) + ".AA",
    "in other base64": lambda node, told: node.proof(told).replace(".", "=.", 1),
    "for another node": other_claims(aud="00000000-0000-4000-8000-000000000000"),
    "for many nodes": lambda node, told: node.proof(told, aud=[told["aud"], "x"]),
    "for another approval": other_claims(jti="A" * 32),
    "for other arguments": other_claims(args_sha256="0" * 64),
    "for anything": lambda node, told: node.proof(told, jti=None, args_sha256=None),
    "expired": other_times(iat=-600, exp=-300),
    "for a year": other_times(exp=86_400 * 365),
    "for ever": other_claims(exp=None),
    "of the future": other_times(iat=86_400, exp=90_000),
    "not yet": other_times(nbf=86_400, exp=90_000),
    "no decision": other_claims(decision=None),
    "another decision": other_claims(decision="Approve"),
    "times as words": other_claims(iat="now", exp="later"),
}


@pytest.mark.spec("AX-11.3-7")
@pytest.mark.spec("AX-11.3-13")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_rejects_forged_proofs(node: Fortress, forgery: str) -> None:
    for which in ("http 2025-06-18", f"http {STATELESS}", "lines"):
        with open_client(node, which) as client:
            arguments = fresh()
            pending = client.hold(arguments)
            if forgery == "its own key, an anchor" and which == "lines":
                continue  # by that door the caller is the node's own user, and not the model
            answer = client.confirm(pending["confirmation_id"], FORGERIES[forgery](node, pending))
            assert answer["error"]["code"] in (-31007, -31031, -32602), answer
            # It was not spoilt either: it still waits for the keeper.
            again = client.call(arguments)["result"]["structuredContent"]
            assert again["confirmation_id"] == pending["confirmation_id"]


@pytest.mark.spec("AX-11.3-13")
@doors
def test_proof_is_single_use(node: Fortress, which: str) -> None:
    with open_client(node, which) as client:
        arguments = fresh()
        pending = client.hold(arguments)
        proof = node.proof(pending)
        node.allowed.append(arguments)
        assert "result" in client.confirm(pending["confirmation_id"], proof)
        for _ in range(3):
            answer = client.confirm(pending["confirmation_id"], proof)
            assert "decided already" in answer["error"]["message"]
        # The same call again is another call: the old proof is not for it, under whichever id.
        again = client.hold(arguments)
        assert again["confirmation_id"] != pending["confirmation_id"]
        assert client.confirm(again["confirmation_id"], proof)["error"]["code"] == -31007


@pytest.mark.spec("AX-11.3-7")
def test_proof_is_bound_to_its_call(node: Fortress) -> None:
    with open_client(node, "http 2025-11-25") as client:
        one, other = client.hold(fresh()), client.hold(fresh())
        proof = node.proof(one)
        assert client.confirm(other["confirmation_id"], proof)["error"]["code"] == -31007
        mixed = node.proof({**other, "args_sha256": one["args_sha256"]})
        assert client.confirm(other["confirmation_id"], mixed)["error"]["code"] == -31007
        assert client.confirm(one["confirmation_id"], mixed)["error"]["code"] == -31007


def test_rejection_is_final(node: Fortress) -> None:
    with open_client(node, "http 2025-11-25") as client:
        arguments = fresh()
        pending = client.hold(arguments)
        refusal = node.proof(pending, decision="refuse")
        assert client.confirm(pending["confirmation_id"], refusal)["result"]["status"] == "refused"
        answer = client.confirm(pending["confirmation_id"], node.proof(pending))
        assert "decided already" in answer["error"]["message"]
        response = client.call(arguments)
        assert "refused" in str(response)
        assert client.hold(arguments)["confirmation_id"] != pending["confirmation_id"]


ODD_CONFIRMS: list[Any] = [
    *({}, {"confirmation_id": None}, {"proof": "x"}, {"confirmation_id": "", "proof": ""}),
    *({"confirmation_id": ["$id"], "proof": "x"}, {"id": "$id", "decision": "approve"}),
    *({"confirmation_id": "$id"}, {"confirmation_id": "$id", "proof": {"decision": "approve"}}),
    *({"confirmation_id": "$id", "decision": "approve", "proof": "approve"},),
    *(
        {"confirmation_id": "$id/../$id", "proof": "x"},
        {"confirmation_id": "x" * 9999},
    ),
    *({"confirmation_id": "*", "proof": "x"}, {"confirmation_id": "\ud800", "proof": "x"}),
]


@doors
def test_malformed_confirmations_approve_nothing(node: Fortress, which: str) -> None:
    with open_client(node, which) as client:
        pending = client.hold(fresh())
        for params in ODD_CONFIRMS:
            text = json.dumps(params).replace("$id", pending["confirmation_id"])
            body = json.dumps(client.fit(json.loads(text)))
            said = f'{{"jsonrpc":"2.0","id":"c","method":"mcpax/confirm","params":{body}}}'
            for answer in client.say(said.encode(), "c"):
                assert "error" in answer or answer.get("result") == {}, answer


# -- the answers that a client gives in its user's name


@pytest.mark.spec("AQ-8.7.3-5")
def test_accepting_elicitation_does_not_approve(node: Fortress) -> None:
    """On the stateless wire: `accept` says that the page was opened, not what was decided there."""
    arguments = fresh()
    capable = Stateless(node, URL_CAPABLE)
    needed = capable.call(arguments)["result"]
    assert needed["resultType"] == "input_required"
    state = needed["requestState"]
    (key,) = needed["inputRequests"]
    other = capable.call(fresh())["result"]["requestState"]
    forged: list[dict[str, Any]] = [
        {"inputResponses": {key: {"action": "decline"}}, "requestState": state},
        {"inputResponses": {key: {"action": "cancel"}}, "requestState": state},
        {"inputResponses": {key: {}}, "requestState": state},
        {"inputResponses": {key: "accept"}, "requestState": state},
        {"inputResponses": {}, "requestState": state},
        {"requestState": state},
        {"inputResponses": {key: {"action": "decline"}}, "requestState": other},
    ]
    for more in forged:
        answer = capable.call(arguments, **more)
        assert "error" in answer or "vault is open" not in str(answer), answer
    # With `accept` the call waits for a decision, and hanging up is all that its client can do.
    # The first approval was declined above, so this is the state of the one that is pending now.
    state = capable.call(arguments)["result"]["requestState"]
    accepting = {"inputResponses": {key: {"action": "accept", "content": {"approved": True}}}}
    fields = {"name": TOOL, "arguments": arguments, **accepting, "requestState": state}
    body = message("tools/call", capable.fit(fields), 1)
    with node.connect() as wire:
        wire.send(node.http(body, *capable.bearer, *capable.headers_of(body)))
        node.until(lambda: list(node.node.pipeline.running_calls()), "it waits")
        wire.expect_silence()
    node.until(lambda: not list(node.node.pipeline.running_calls()), "it waits for nobody")


@pytest.mark.spec("AQ-8.7.3-5")
def test_session_client_responses_do_not_approve(node: Fortress) -> None:
    for client in (
        HttpSession(node, "2025-11-25", URL_CAPABLE),
        Lines(node, "2025-11-25", URL_CAPABLE),
    ):
        with client:
            arguments = fresh()
            error = client.call(arguments)["error"]
            assert error["code"] == -32042
            id = error["data"]["elicitations"][0]["elicitationId"]
            accept = {"action": "accept", "content": {"approved": True, "elicitationId": id}}
            for said in (id, 0, 1, "r1", None):
                client.say(json.dumps({"jsonrpc": "2.0", "id": said, "result": accept}).encode())
            client.say(message("notifications/elicitation/complete", {"elicitationId": id}, None))
            client.ask("elicitation/create", {"elicitationId": id, "action": "accept"})
            assert client.call(arguments)["error"]["code"] == -32042


def test_input_state_is_bound_to_caller_and_call(node: Fortress) -> None:
    arguments = fresh()
    capable = Stateless(node, URL_CAPABLE)
    state = capable.call(arguments)["result"]["requestState"]
    more = {"inputResponses": {"approval": {"action": "decline"}}, "requestState": state}
    for body in (state[:-4], state + "A", state.swapcase(), "i2." + state[3:], state * 2):
        assert "vault is open" not in str(capable.call(arguments, **{**more, "requestState": body}))
    assert "vault is open" not in str(capable.call(fresh(), **more))
    looked = capable.call(arguments, "vault.look", **more)
    assert "error" in looked
    clerk = Stateless(node, URL_CAPABLE)
    clerk.token = "c" * 32
    assert "vault is open" not in str(clerk.call(arguments, **more))


# -- two at once


def run_concurrently(*doing: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(doing)) as pool:
        return [item.result() for item in [pool.submit(do) for do in doing]]


@pytest.mark.spec("AX-11.3-13")
def test_concurrent_confirmations_run_call_once(node: Fortress) -> None:
    clients = [Stateless(node) for _ in range(8)]
    for _ in range(5):
        arguments = fresh()
        pending = clients[0].hold(arguments)
        proofs = [node.proof(pending, iat=int(time.time()) - number) for number in range(8)]
        node.allowed.append(arguments)

        pairs = zip(clients, proofs, strict=True)
        answers = run_concurrently(
            *(partial(f.confirm, pending["confirmation_id"], p) for f, p in pairs)
        )
        assert sum("result" in response for response in answers) == 1


def test_identical_concurrent_calls_share_approval(node: Fortress) -> None:
    clients = [Stateless(node) for _ in range(8)]
    arguments = fresh()
    answers = run_concurrently(*(partial(server.hold, arguments) for server in clients))
    assert len({response["confirmation_id"] for response in answers}) == 1
    proof = node.proof(answers[0])
    node.allowed.append(arguments)
    confirm = partial(clients[0].confirm, answers[0]["confirmation_id"], proof)
    details = run_concurrently(
        *(partial(server.call, arguments) for server in clients[1:]), confirm
    )
    assert "The vault is open" in str(details[-1])
    # Nobody who asked meanwhile made it happen again; whoever came later waits for a new decision.
    assert all("The vault is open" in str(item) or REQUIRED in str(item) for item in details)


def test_cancelled_call_runs_at_most_once_when_confirmed(
    node: Fortress,
) -> None:
    with (
        open_client(node, "http 2025-11-25") as client,
        open_client(node, "http 2025-11-25") as other,
    ):
        arguments = fresh()
        pending = client.hold(arguments)
        proof = node.proof(pending)
        params = {"confirmation_id": pending["confirmation_id"], "proof": proof}
        node.allowed.append(arguments)
        # Cancelling the request that brought the proof does not undo the decision.
        run_concurrently(
            lambda: client.say(message("mcpax/confirm", params, "brought")),
            lambda: client.say(message("notifications/cancelled", {"requestId": "brought"}, None)),
            lambda: other.call(arguments),
            lambda: client.say(message("notifications/cancelled", {"requestId": "r1"}, None)),
            lambda: other.confirm(pending["confirmation_id"], proof),
        )
        # Nobody waits any more for what then happens.
        node.until(lambda: arguments in node.opened(), "it is opened")


@pytest.fixture
def short_expiry_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    """A node whose approvals expire at once."""
    folder = tmp_path_factory.mktemp("hasty") / "node"
    yield from running_fortress(folder, approvals={"expiry": 0.2})


def test_rejects_late_proof(short_expiry_node: Fortress) -> None:
    approving = short_expiry_node.node.trust.approving
    assert approving is not None
    client = HttpSession(short_expiry_node, "2025-11-25")
    arguments = fresh()
    pending = client.hold(arguments)
    id, proof = pending["confirmation_id"], short_expiry_node.proof(pending)

    def expired() -> bool:
        record = approving.approvals.find(id)
        return record is not None and record.state == "expired"

    short_expiry_node.until(expired, "it expires")
    assert "can no longer be confirmed" in client.confirm(id, proof)["error"]["message"]
    again = client.hold(arguments)
    assert again["confirmation_id"] != id
    assert "error" in client.confirm(again["confirmation_id"], proof)
