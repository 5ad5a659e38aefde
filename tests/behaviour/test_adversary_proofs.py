"""A model confirms its own calls with everything that it was ever given, and all it can make."""

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
    FACES,
    MODEL,
    REQUIRED,
    TOOL,
    URL_CAPABLE,
    Fortress,
    HttpSession,
    Lines,
    Stateless,
    door,
    fresh,
    standing,
)
from tests.support.http_client import STATELESS, message

doors = pytest.mark.parametrize("which", FACES)
STRANGER = OKPKey.generate_key("Ed25519")
Told = dict[str, Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    yield from standing(tmp_path_factory.mktemp("proofs") / "node")


@pytest.fixture
def node(shared: Fortress) -> Iterator[Fortress]:
    yield shared
    shared.must_be_intact()


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(node: Fortress, told: Told, alg: str, **header: Any) -> str:
    """The right claims under a header of one's own, without the last part."""
    claims = node.proof(told, STRANGER).split(".")[1]
    return b64(json.dumps({"alg": alg, **header}).encode()) + "." + claims


def hmac_of(words: str, key: bytes) -> str:
    return f"{words}.{b64(hmac.digest(key, words.encode(), hashlib.sha256))}"


def public(node: Fortress) -> bytes:
    return bytes(node.keeper.as_pem(private=False))


def embedded(node: Fortress, told: Told) -> str:
    """Signed with a key that the proof itself brings along."""
    words = unsigned(node, told, "EdDSA", jwk=STRANGER.as_dict(private=False), kid="keeper")
    assert isinstance(STRANGER.private_key, Ed25519PrivateKey)
    signature = STRANGER.private_key.sign(words.encode())
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
    "a key of its own": lambda node, told: node.proof(told, STRANGER),
    "a key of its own called keeper": embedded,
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
def test_nothing_that_is_no_proof_opens_it(node: Fortress, forgery: str) -> None:
    for which in ("http 2025-06-18", f"http {STATELESS}", "lines"):
        with door(node, which) as face:
            arguments = fresh()
            told = face.hold(arguments)
            if forgery == "its own key, an anchor" and which == "lines":
                continue  # by that door the caller is the node's own user, and not the model
            answer = face.confirm(told["confirmation_id"], FORGERIES[forgery](node, told))
            assert answer["error"]["code"] in (-31007, -31031, -32602), answer
            # It was not spoilt either: it still waits for the keeper.
            again = face.call(arguments)["result"]["structuredContent"]
            assert again["confirmation_id"] == told["confirmation_id"]


@pytest.mark.spec("AX-11.3-13")
@doors
def test_a_proof_counts_once(node: Fortress, which: str) -> None:
    with door(node, which) as face:
        arguments = fresh()
        told = face.hold(arguments)
        proof = node.proof(told)
        node.allowed.append(arguments)
        assert "result" in face.confirm(told["confirmation_id"], proof)
        for _ in range(3):
            answer = face.confirm(told["confirmation_id"], proof)
            assert "decided already" in answer["error"]["message"]
        # The same call again is another call: the old proof is not for it, under whichever id.
        again = face.hold(arguments)
        assert again["confirmation_id"] != told["confirmation_id"]
        assert face.confirm(again["confirmation_id"], proof)["error"]["code"] == -31007


@pytest.mark.spec("AX-11.3-7")
def test_a_proof_of_one_call_is_none_of_another(node: Fortress) -> None:
    with door(node, "http 2025-11-25") as face:
        one, other = face.hold(fresh()), face.hold(fresh())
        proof = node.proof(one)
        assert face.confirm(other["confirmation_id"], proof)["error"]["code"] == -31007
        mixed = node.proof({**other, "args_sha256": one["args_sha256"]})
        assert face.confirm(other["confirmation_id"], mixed)["error"]["code"] == -31007
        assert face.confirm(one["confirmation_id"], mixed)["error"]["code"] == -31007


def test_a_refusal_opens_nothing_and_cannot_be_taken_back(node: Fortress) -> None:
    with door(node, "http 2025-11-25") as face:
        arguments = fresh()
        told = face.hold(arguments)
        refusal = node.proof(told, decision="refuse")
        assert face.confirm(told["confirmation_id"], refusal)["result"]["status"] == "refused"
        answer = face.confirm(told["confirmation_id"], node.proof(told))
        assert "decided already" in answer["error"]["message"]
        refused = face.call(arguments)
        assert "refused" in str(refused)
        assert face.hold(arguments)["confirmation_id"] != told["confirmation_id"]


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
def test_confirming_in_no_order_opens_nothing(node: Fortress, which: str) -> None:
    with door(node, which) as face:
        told = face.hold(fresh())
        for params in ODD_CONFIRMS:
            text = json.dumps(params).replace("$id", told["confirmation_id"])
            body = json.dumps(face.fit(json.loads(text)))
            said = f'{{"jsonrpc":"2.0","id":"c","method":"mcpax/confirm","params":{body}}}'
            for answer in face.say(said.encode(), "c"):
                assert "error" in answer or answer.get("result") == {}, answer


# -- the answers that a client gives in its user's name


@pytest.mark.spec("AQ-8.7.3-5")
def test_a_client_that_accepts_for_its_user_only_waits(node: Fortress) -> None:
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
    said = {"name": TOOL, "arguments": arguments, **accepting, "requestState": state}
    body = message("tools/call", capable.fit(said), 1)
    with node.connect() as wire:
        wire.send(node.http(body, *capable.bearer, *capable.headers_of(body)))
        node.until(lambda: list(node.node.pipeline.running_calls()), "it waits")
        wire.silent()
    node.until(lambda: not list(node.node.pipeline.running_calls()), "it waits for nobody")


@pytest.mark.spec("AQ-8.7.3-5")
def test_the_answers_of_a_session_client_open_nothing(node: Fortress) -> None:
    for face in (
        HttpSession(node, "2025-11-25", URL_CAPABLE),
        Lines(node, "2025-11-25", URL_CAPABLE),
    ):
        with face:
            arguments = fresh()
            error = face.call(arguments)["error"]
            assert error["code"] == -32042
            id = error["data"]["elicitations"][0]["elicitationId"]
            accept = {"action": "accept", "content": {"approved": True, "elicitationId": id}}
            for said in (id, 0, 1, "r1", None):
                face.say(json.dumps({"jsonrpc": "2.0", "id": said, "result": accept}).encode())
            face.say(message("notifications/elicitation/complete", {"elicitationId": id}, None))
            face.ask("elicitation/create", {"elicitationId": id, "action": "accept"})
            assert face.call(arguments)["error"]["code"] == -32042


def test_state_is_of_use_to_nobody_else_and_for_nothing_else(node: Fortress) -> None:
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


def at_once(*doing: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(doing)) as pool:
        return [one.result() for one in [pool.submit(do) for do in doing]]


@pytest.mark.spec("AX-11.3-13")
def test_two_confirms_at_once_open_it_once(node: Fortress) -> None:
    faces = [Stateless(node) for _ in range(8)]
    for _ in range(5):
        arguments = fresh()
        told = faces[0].hold(arguments)
        proofs = [node.proof(told, iat=int(time.time()) - number) for number in range(8)]
        node.allowed.append(arguments)

        pairs = zip(faces, proofs, strict=True)
        answers = at_once(*(partial(f.confirm, told["confirmation_id"], p) for f, p in pairs))
        assert sum("result" in one for one in answers) == 1


def test_identical_calls_at_once_wait_for_one_approval(node: Fortress) -> None:
    faces = [Stateless(node) for _ in range(8)]
    arguments = fresh()
    answers = at_once(*(partial(one.hold, arguments) for one in faces))
    assert len({one["confirmation_id"] for one in answers}) == 1
    proof = node.proof(answers[0])
    node.allowed.append(arguments)
    confirm = partial(faces[0].confirm, answers[0]["confirmation_id"], proof)
    told = at_once(*(partial(one.call, arguments) for one in faces[1:]), confirm)
    assert "The vault is open" in str(told[-1])
    # Nobody who asked meanwhile made it happen again; whoever came later waits for a new decision.
    assert all("The vault is open" in str(one) or REQUIRED in str(one) for one in told)


def test_a_call_that_is_cancelled_while_it_is_confirmed_happens_at_most_once(
    node: Fortress,
) -> None:
    with door(node, "http 2025-11-25") as face, door(node, "http 2025-11-25") as other:
        arguments = fresh()
        told = face.hold(arguments)
        proof = node.proof(told)
        params = {"confirmation_id": told["confirmation_id"], "proof": proof}
        node.allowed.append(arguments)
        # Cancelling the request that brought the proof does not undo the decision.
        at_once(
            lambda: face.say(message("mcpax/confirm", params, "brought")),
            lambda: face.say(message("notifications/cancelled", {"requestId": "brought"}, None)),
            lambda: other.call(arguments),
            lambda: face.say(message("notifications/cancelled", {"requestId": "r1"}, None)),
            lambda: other.confirm(told["confirmation_id"], proof),
        )
        # Nobody waits any more for what then happens.
        node.until(lambda: arguments in node.opened(), "it is opened")


@pytest.fixture
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    """A node whose approvals expire at once."""
    folder = tmp_path_factory.mktemp("hasty") / "node"
    yield from standing(folder, approvals={"expiry": 0.2})


def test_a_proof_that_comes_too_late_opens_nothing(hasty: Fortress) -> None:
    approving = hasty.node.trust.approving
    assert approving is not None
    face = HttpSession(hasty, "2025-11-25")
    arguments = fresh()
    told = face.hold(arguments)
    id, proof = told["confirmation_id"], hasty.proof(told)

    def expired() -> bool:
        found = approving.approvals.find(id)
        return found is not None and found.state == "expired"

    hasty.until(expired, "it expires")
    assert "can no longer be confirmed" in face.confirm(id, proof)["error"]["message"]
    again = face.hold(arguments)
    assert again["confirmation_id"] != id
    assert "error" in face.confirm(again["confirmation_id"], proof)
