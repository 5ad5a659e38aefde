"""A node with something behind each of its doors, and the schemas that its answers must fit."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.contracts.schemas.reader import read_json, read_yaml
from interlock.topics.config import TopicsConfig
from tests.behaviour.adversary import CLERK, TOKENS, Fortress, Stateless
from tests.behaviour.test_aql_adversary import SafetyNode
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import sign

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
JSON = SCHEMAS / "json" / "interlock" / "v1"


# -- the schemas, and how strictly they are taken


def strict_schema(schema: Any) -> Any:
    """The same, with every member that is not declared refused: nothing may be written that is in
    no schema."""
    if isinstance(schema, list):
        return [strict_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: strict_schema(item) for key, item in schema.items()}
    if "properties" in strict and isinstance(strict["properties"], dict):
        strict.setdefault("additionalProperties", False)
    return strict


def schema_of(name: str) -> dict[str, Any]:
    return read_json(name, (JSON / f"{name}.schema.json").read_text(encoding="utf-8"))


def openapi_document() -> dict[str, Any]:
    path = SCHEMAS / "openapi" / "interlock.v1.yaml"
    return read_yaml(path.name, path.read_text(encoding="utf-8"))


def assert_matches(name: str, value: Any) -> None:
    """Whether this is a NAME, with nothing missing and nothing more."""
    validator = jsonschema_rs.validator_for(strict_schema(schema_of(name)))
    wrong = [
        f"{'/'.join(map(str, error.instance_path))}: {error.message}"
        for error in validator.iter_errors(value)
    ]
    assert wrong == [], (name, wrong)


# -- a node with everything


class Office(SafetyNode):
    """A node with a child, a topic, the safety loop, and somebody for each of its doors."""

    def __init__(self, folder: Path) -> None:
        topics: dict[str, Any] = {
            "admins": ["clerk"],
            "rooms": {
                "ops-*": {"participants": [{"callers": ["model"], "profile": "full_access"}]}
            },
        }
        Fortress.__init__(
            self,
            folder,
            tokens=TOKENS,
            aql=AqlConfig(safety=SafetyConfig(mode="enforcing")),
            topics=msgspec.convert(topics, TopicsConfig),
        )

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def told(self, path: str, token: str | None = CLERK, sent: Any = None, **headers: str) -> Any:
        """What it answers, as JSON."""
        return self.answer(path, token, sent, **headers)[1]

    def answer(
        self, path: str, token: str | None = CLERK, sent: Any = None, **headers: str
    ) -> tuple[int, Any]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            fields["Authorization"] = f"Bearer {token}"
        body = None if sent is None else json.dumps(sent).encode()
        if body is not None:
            fields["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{self.base}{path}", body, fields)
        try:
            with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def sign_in(self, question: dict[str, Any]) -> dict[str, str]:
        """What the keeper answers to be let in."""
        now = int(time.time())
        claims = {
            "aud": question["aud"],
            "jti": "inbox",
            "args_sha256": question["nonce"],
            "decision": "approve",
            "iat": now,
            "exp": now + 300,
        }
        return {"nonce": question["nonce"], "proof": sign(self.keeper, claims)}

    def signed(self, approval: Any, decision: str = "approve") -> str:
        """What the keeper decides about an approval."""
        return self.proof(
            {
                "aud": approval["aud"],
                "confirmation_id": approval["id"],
                "args_sha256": approval["args_sha256"],
            },
            decision=decision,
        )


class Caller(Stateless):
    """Somebody who calls tools, and is not watched by the safety loop."""

    token = CLERK
