"""Codes over HTTP, before a guarded node: the app, those who come, and an operator who signs in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from interlock.aql.safety.operator_api import OperatorApi
from interlock.core.call import Caller
from interlock.core.server.http.asgi import Scope
from interlock.core.server.http.guard import Guard
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.approvals.web import VerificationApp
from interlock.trust.operators.operators import Operators
from interlock.trust.operators.store import OperatorStore
from tests.aql.safety.guarded_pipeline import GuardedPipeline
from tests.trust.approvals.gated import NODE, sign

HOST = b"localhost:7070"


class CodeOffice:
    """The app before a guarded node, and those who come."""

    def __init__(self, folder: Path) -> None:
        self.node = GuardedPipeline(folder)
        self.desk = Operators(
            OperatorStore(folder / "operators.db"),
            origins=lambda: ("http://localhost:7070",),
            audience=lambda: NODE,
            wall_clock=lambda: self.node.wall,
        )
        self.desk.proofs = self.node.proofs
        self.refusals: list[str] = []

        def authenticate(credentials: Any) -> Caller:
            if credentials.bearer == "clerk":
                return Caller("clerk", can_view_approvals=True, kind="token")
            if credentials.peer == "local":
                return Caller("local")
            raise InterlockError(UNAUTHENTICATED, "Who are you?")

        self.app = VerificationApp(
            approvals=self.node.approvals,
            operators=self.desk,
            guard=Guard("127.0.0.1", 7070),
            authenticate=authenticate,
            on_rejected=lambda _, error: self.refusals.append(error.message),
            origins=lambda: ("http://localhost:7070",),
            wall_clock=lambda: self.node.wall,
        )
        self.app.verification = OperatorApi(self.node.loop)

    async def ask(
        self, method: str, path: str, sent: Any = None, *, local: bool = False, **headers: str
    ) -> tuple[int, Any]:
        body = b"" if sent is None else json.dumps(sent).encode()
        fields = [(b"host", HOST), (b"content-type", b"application/json")]
        fields += [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": fields,
            "client": ("10.0.0.9", 5),
            "scheme": "http",
        }
        events: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            events.append(message)

        await (self.app.local if local else self.app)(scope, receive, send)
        whole = b"".join(item.get("body", b"") for item in events)
        return events[0]["status"], json.loads(whole)

    async def sign_in(self) -> str:
        _, question = await self.ask("GET", "/approvals/session")
        claims = {
            "aud": question["aud"],
            "jti": "inbox",
            "args_sha256": question["nonce"],
            "decision": "approve",
            "iat": int(self.node.wall),
            "exp": int(self.node.wall) + 60,
        }
        status, told = await self.ask(
            "POST",
            "/approvals/session",
            {"nonce": question["nonce"], "proof": sign(self.node.keys.operator, claims)},
        )
        assert status == 200, told
        session: str = told["session"]
        return session
