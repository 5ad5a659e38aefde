"""Random sequences of messages, with an operator who sometimes approves a call.

Whatever is said, and in whatever order: the vault was opened exactly once for each decision of the
operator, with the very arguments that the operator saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from joserfc.jwk import OKPKey

from tests.behaviour.adversary import (
    CLERK,
    REQUIRED,
    TOOL,
    URL_CAPABLE,
    AdversaryClient,
    Fortress,
    HttpSession,
    Lines,
    OldSse,
    Stateless,
    StatelessLines,
    fresh,
    in_order,
    running_fortress,
)
from tests.behaviour.test_adversary_messages import (
    ADDED,
    FORGED,
    METHODS,
    NAMES,
    duplicate_member_calls,
)
from tests.support.http_client import message

UNENROLLED = OKPKey.generate_key("Ed25519")
FEW_ARGUMENTS = [{"door": number} for number in (-1, -2, -3)]
"""Few enough that the same call is often made again."""


class Doors:
    """One client before each door, for all runs of the machine."""

    def __init__(self, node: Fortress) -> None:
        self.node = node
        clerk = Stateless(node)
        clerk.token = CLERK
        self.faces: list[AdversaryClient] = [
            HttpSession(node, "2025-11-25"),
            HttpSession(node, "2025-03-26"),
            HttpSession(node, "2025-11-25", URL_CAPABLE),
            Stateless(node),
            Stateless(node, URL_CAPABLE),
            clerk,
            OldSse(node),
            Lines(node),
            StatelessLines(node),
        ]

    def close(self) -> None:
        for client in self.faces:
            client.close()


class Model(RuleBasedStateMachine):
    """What was said so far, and what the model was given for it."""

    doors: ClassVar[Doors]
    waiting = Bundle("waiting")
    """What is known of approvals: (face, arguments, what was told)."""
    signed = Bundle("signed")
    """Proofs that were seen, used or not."""

    def __init__(self) -> None:
        super().__init__()
        self.node = self.doors.node
        self.decided: dict[str, str] = {}

    def told_of(self, answer: Any) -> dict[str, Any] | None:
        """What there is to know of a held call. A client that opens pages is told the id only."""
        content = answer.get("result", {}).get("structuredContent")
        if isinstance(content, dict) and content.get("status") == REQUIRED:
            return content
        text = json.dumps(answer)
        for approval in self.node.do(self.approvals.pending):
            if approval.id in text:
                return {
                    "confirmation_id": approval.id,
                    "aud": approval.audience,
                    "args_sha256": approval.digest,
                    "nonce": approval.nonce,
                    "requestState": answer.get("result", {}).get("requestState"),
                }
        return None

    @property
    def approvals(self) -> Any:
        approving = self.node.node.trust.approving
        assert approving is not None
        return approving.approvals

    @rule(
        target=waiting,
        door=st.integers(0, 8),
        arguments=st.sampled_from(FEW_ARGUMENTS),
        name=st.sampled_from([TOOL, "vault__open"]),
        more=st.sampled_from([{}, *ADDED]),
        meta=st.sampled_from([{}, *FORGED]),
    )
    def call(self, door: int, arguments: Any, name: str, more: Any, meta: Any) -> Any:
        client = self.doors.faces[door]
        answer = client.call(arguments, name, **{**more, **({"_meta": meta} if meta else {})})
        return (client, arguments, self.told_of(answer))

    @rule(door=st.integers(0, 8), name=st.sampled_from(NAMES), arguments=st.integers(0, 2))
    def misspell(self, door: int, name: str, arguments: int) -> None:
        client = self.doors.faces[door]
        if name not in (TOOL, "vault__open"):
            client.call(FEW_ARGUMENTS[arguments], name)

    @rule(door=st.integers(0, 8), method=st.sampled_from(METHODS), known=waiting)
    def say(self, door: int, method: str, known: Any) -> None:
        client = self.doors.faces[door]
        if method == "initialize":
            return
        id = (known[2] or {}).get("confirmation_id", "x")
        params = {"name": TOOL, "taskId": id, "confirmation_id": id, "arguments": known[1]}
        client.say(message(method, client.fit(params), "m"), "m")

    @rule(door=st.integers(0, 8), which=st.integers(0, 30))
    def stutter(self, door: int, which: int) -> None:
        client = self.doors.faces[door]
        bodies = duplicate_member_calls(client)
        body = bodies[which % len(bodies)]
        client.say(body, None if b'"result"' in body else "twin")

    @rule(door=st.integers(0, 8), known=waiting, how=st.integers(0, 5))
    def forge(self, door: int, known: Any, how: int) -> None:
        told = known[2]
        if told is None:
            return
        made = [
            told["nonce"],
            told["args_sha256"],
            self.node.proof(told, UNENROLLED),
            self.node.proof(told, decision="approved"),
            self.node.proof(told, exp=1, iat=0),
            self.node.proof(told, aud="elsewhere"),
        ][how]
        answer = self.doors.faces[door].confirm(told["confirmation_id"], made)
        assert "error" in answer

    @rule(known=waiting, action=st.sampled_from(["accept", "cancel", "decline"]))
    def come_back(self, known: Any, action: str) -> None:
        """With the state that was given. To decline withdraws the call; others decide nothing."""
        client, arguments, told = known
        if told is not None and told.get("requestState"):
            answered = {"inputResponses": {"approval": {"action": action}}}
            answered["requestState"] = told["requestState"]
            if action == "accept" and told["confirmation_id"] not in self.decided:
                # The node keeps it waiting for the operator. This client does not stay.
                assert isinstance(client, Stateless)
                client.call_and_leave(arguments, **answered)
                return
            client.call(arguments, **answered)
            if action == "decline":
                self.decided.setdefault(told["confirmation_id"], "")

    @rule(target=signed, door=st.integers(0, 8), known=waiting, refuse=st.booleans())
    def decide(self, door: int, known: Any, refuse: bool) -> Any:
        """The operator decides, for once; anybody may carry the proof."""
        _, arguments, told = known
        if told is None:
            return (None, None)
        id = told["confirmation_id"]
        proof = self.node.proof(told, decision="refuse" if refuse else "approve")
        answer = self.doors.faces[door].confirm(id, proof)
        if id not in self.decided:
            assert "result" in answer, answer
            self.decided[id] = proof
            if not refuse:
                self.node.allowed.append(arguments)
        else:
            assert "error" in answer
        return (id, proof)

    @rule(door=st.integers(0, 8), seen=signed, known=waiting)
    def replay(self, door: int, seen: Any, known: Any) -> None:
        """A proof that was there before: for its own approval again, and for another."""
        id, proof = seen
        if proof is None:
            return
        client = self.doors.faces[door]
        assert "error" in client.confirm(id, proof)
        if known[2] is not None:
            assert "error" in client.confirm(known[2]["confirmation_id"], proof)

    @invariant()
    def opened_as_decided(self) -> None:
        assert in_order(self.node.opened()) == in_order(self.node.allowed)

    def teardown(self) -> None:
        self.node.must_be_intact()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    for node in running_fortress(tmp_path_factory.mktemp("machine") / "node"):
        doors = Doors(node)
        yield doors
        doors.close()


@pytest.mark.spec("AX-11.3-4", "AX-11.3-7", "AX-11.3-13", "AQ-8.7.3-5")
def test_message_order_does_not_bypass_approval(doors: Doors) -> None:
    Model.doors = doors
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # The machine did see both sides: what was decided happened.
    assert doors.node.allowed
    last = fresh()
    client = doors.faces[0]
    doors.node.approve(client, client.hold(last), last)
    assert last in doors.node.opened()
