"""Every kind of proof reaches the node over HTTP: a person's key, a policy engine, a service."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.core.config.trust import AnchorConfig, ApprovalsConfig, PolicyConfig, RuleConfig
from tests.trust.approvals_web.office import Office, b64, signed

SECRET = "a secret that is long enough for a service, 40+"


class Engines:
    """A node that believes a policy engine and a service."""

    def __init__(self, folder: Path, *rules: RuleConfig) -> None:
        self.engine = Ed25519PrivateKey.generate()
        (folder / "engine.pub").write_bytes(
            self.engine.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        (folder / "service.secret").write_text(SECRET)
        anchors = [
            AnchorConfig("engine", "policy_engine", key="engine.pub"),
            AnchorConfig("desk", "service", secret="${file:service.secret}"),
        ]
        url = "https://approve.example/node1"
        self.office = Office(
            folder,
            approvals=ApprovalsConfig(anchors=anchors, url=url),
            policy=PolicyConfig(rules=list(rules)),
        )

    def claims(self, told: dict[str, Any], **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {
            "aud": told["aud"],
            "jti": told["confirmation_id"],
            "args_sha256": told["args_sha256"],
            "iat": now,
            "exp": now + 60,
            "decision": "approve",
            **more,
        }

    def token(self, told: dict[str, Any], token_id: str) -> str:
        header = {"alg": "HS256"}
        said = self.claims(told, token_id=token_id)
        words = ".".join(b64(json.dumps(part).encode()) for part in (header, said))
        return f"{words}.{b64(hmac.digest(SECRET.encode(), words.encode(), sha256))}"


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    # By its name the tool needs a person's own key, unless a rule says otherwise.
    one = Engines(tmp_path, RuleConfig("anybody", "confirm", tools=["shop.drop_table"]))
    try:
        yield one
    finally:
        one.office.stop()


@pytest.mark.spec("AX-11.3-5")
def test_policy_engine_signs_nonce(engines: Engines) -> None:
    office = engines.office
    pending = office.held()
    without = signed(engines.engine, engines.claims(pending))
    assert office.decide(pending, without).status == 403
    proof = signed(engines.engine, engines.claims(pending, nonce=pending["nonce"]))
    answer = office.decide(pending, proof)
    assert (answer.json["state"], answer.json["by"], answer.json["proof"]) == (
        "done",
        "engine",
        "policy_engine",
    )


@pytest.mark.spec("AX-11.3-5")
def test_service_token_is_single_use(engines: Engines) -> None:
    office = engines.office
    pending = office.held()
    answer = office.decide(pending, engines.token(pending, "t-1"))
    assert (answer.json["state"], answer.json["by"]) == ("done", "desk")
    other = office.held(table="others")
    again = office.decide(other, engines.token(other, "t-1"))
    assert (again.status, again.json["error"]) == (403, "proof_invalid")
    assert office.decide(other, engines.token(other, "t-2")).json["state"] == "done"


@pytest.mark.feature("aql")
def test_engine_and_service_cannot_approve_dangerous_name(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    office = engines.office
    try:
        pending = office.held()
        proof = signed(engines.engine, engines.claims(pending, nonce=pending["nonce"]))
        for refused in (proof, engines.token(pending, "t-1")):
            assert office.decide(pending, refused).status == 403
        assert office.dropped() == []
        answer = office.decide(pending, signed(office.chief, engines.claims(pending)))
        assert (answer.json["state"], answer.json["by"]) == ("done", "chief")
    finally:
        office.stop()


def test_page_works_behind_proxy(engines: Engines) -> None:
    office = engines.office
    pending = office.held()
    assert pending["url"] == f"https://approve.example/node1/approvals/{pending['confirmation_id']}"
    path = f"/approvals/{pending['confirmation_id']}"
    host, origin = ("Host", "approve.example"), ("Origin", "https://approve.example")
    assert office.ask("GET", path, None, host, accept="text/html").status == 200
    for bad in ("https://evil.example", "http://approve.example", "https://approve.example:1"):
        answer = office.ask("POST", path, {"proof": "x"}, host, ("Origin", bad))
        assert (answer.status, answer.json["error"]) == (403, "foreign_origin")
    proof = signed(engines.engine, engines.claims(pending, nonce=pending["nonce"]))
    assert office.ask("POST", path, {"proof": proof}, host, origin).json["state"] == "done"
