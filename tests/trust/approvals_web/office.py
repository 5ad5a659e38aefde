"""A real node whose calls wait for people: its page, its endpoints, and those who may decide."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.trust.approvals.component import ApprovalsComponent
from interlock.trust.operators.chain import DraftEntry
from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation, OperatorStore
from tests.support.http_client import HttpConnection, HttpResponse, request
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

DROP = {
    "name": "drop_table",
    "description": "Deletes a table with everything in it. There is no backup.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "table": {"type": "string"},
            "rows": {"type": "integer"},
            "pin": {"type": "string", "format": "password"},
        },
    },
    "annotations": {"destructiveHint": True},
}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: Ed25519PrivateKey, claims: dict[str, Any], **head: Any) -> str:
    """A compact JWS, by hand: another pair of eyes on the format."""
    header = {"alg": "EdDSA", **head}
    words = ".".join(b64(json.dumps(part).encode()) for part in (header, claims))
    return f"{words}.{b64(key.sign(words.encode()))}"


class Office(NodeThread):
    """The node, and an operator called `chief` with a key."""

    def __init__(self, folder: Path, root: Ed25519PrivateKey | None = None, **more: Any) -> None:
        """`root`: the key of an operator of the config, who has to confirm that chief enrols."""
        shop = ToolServer()
        shop.tools = [*shop.tools, DROP]
        super().__init__(folder, workshops={"shop": shop}, **more)
        self.chief = Ed25519PrivateKey.generate()
        pem = self.chief.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.approving.operators.store.add(
            enrol_key(pem, Invitation("chief")),
            None if root is None else lambda draft: signed(root, draft.claims),
        )

    def sign(self, draft: DraftEntry) -> str:
        """What chief signs about who the operators are."""
        return signed(self.chief, draft.claims)

    def remove(self, name: str) -> None:
        """What `interlock keys remove` does, in another process."""
        OperatorStore(self.approving.operators.store.path).remove(name, self.sign)

    def admit(self, id: str) -> None:
        """What `interlock keys approve` does."""
        store = OperatorStore(self.approving.operators.store.path)
        draft = store.draft(enrol=[store.find_pending(id).enrolment])
        store.admit(id, draft.entry, self.sign(draft))

    # -- what a test asks

    @property
    def approving(self) -> ApprovalsComponent:
        approving = self.node.trust.approving
        assert approving is not None
        return approving

    @property
    def page(self) -> str:
        return f"http://localhost:{self.port}/approvals"

    def held(self, **arguments: Any) -> dict[str, Any]:
        """Ask for a call that waits; what its caller is told."""
        answer = self.once(self.call("drop_table", arguments or {"table": "orders"}))
        content: dict[str, Any] = answer.result["structuredContent"]
        assert content["status"] == "confirmation_required"
        return content

    def dropped(self) -> list[dict[str, Any]]:
        """The calls that really reached the server."""
        return [call["params"]["arguments"] for call in self.shop.calls("drop_table")]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *headers: tuple[str, str],
        accept: str = "application/json",
    ) -> HttpResponse:
        sent = b"" if body is None else json.dumps(body).encode()
        kind = [("Accept", accept), ("Content-Type", "application/json")]
        with HttpConnection(("127.0.0.1", self.port)) as wire:
            wire.send(
                request(
                    f"localhost:{self.port}",
                    sent,
                    *[item for item in kind if item[0] not in {name for name, _ in headers}],
                    *headers,
                    method=method,
                    path=path,
                )
            )
            return wire.read_response()

    def proof(self, told: dict[str, Any], decision: str = "approve", **claims: Any) -> str:
        """What chief signs about a held call."""
        now = int(time.time())
        fields = {
            "aud": told["aud"],
            "jti": told["confirmation_id"],
            "args_sha256": told["args_sha256"],
            "iat": now,
            "exp": now + 60,
            "decision": decision,
            **claims,
        }
        return signed(self.chief, fields)

    def decide(self, told: dict[str, Any], proof: str) -> HttpResponse:
        return self.ask("POST", f"/approvals/{told['confirmation_id']}", {"proof": proof})


def session_of(office: Office) -> tuple[str, str]:
    question = office.ask("GET", "/approvals/session").json
    about = {
        "aud": question["aud"],
        "confirmation_id": "inbox",
        "args_sha256": question["nonce"],
    }
    sent = {"nonce": question["nonce"], "proof": office.proof(about)}
    return "Interlock-Session", office.ask("POST", "/approvals/session", sent).json["session"]
