"""Codes over HTTP: nobody sees one without the signature of an operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.call import Caller
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.faces.http.answers import Scope
from interlock.faces.http.guard import Guard
from interlock.faces.http.verification import VerificationApp
from interlock.node.operators import Operators
from interlock.pipeline.aql.safety.desk import VerificationDesk
from interlock.stores.operators import OperatorStore
from tests.pipeline.approval.gated import NODE, sign
from tests.pipeline.aql.safety.guarded import Guarded, verification

HOST = b"localhost:7070"


class Office:
    """The app before a guarded node, and those who come."""

    def __init__(self, folder: Path) -> None:
        self.node = Guarded(folder)
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
                return Caller("clerk", approves=True, kind="token")
            if credentials.peer == "local":
                return Caller("local")
            raise InterlockError(UNAUTHENTICATED, "Who are you?")

        async def otherwise(scope: Any, receive: Any, send: Any) -> None:
            raise AssertionError("not under /approvals")

        self.app = VerificationApp(
            approvals=self.node.approvals,
            desk=self.desk,
            guard=Guard("127.0.0.1", 7070),
            authenticate=authenticate,
            refused=lambda _, error: self.refusals.append(error.message),
            origins=lambda: ("http://localhost:7070",),
            otherwise=otherwise,
            wall_clock=lambda: self.node.wall,
        )
        self.app.verification = VerificationDesk(self.node.loop)

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
        told: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            told.append(message)

        await (self.app.local if local else self.app)(scope, receive, send)
        whole = b"".join(one.get("body", b"") for one in told)
        return told[0]["status"], json.loads(whole)

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


def run(test: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(within())


@pytest.mark.spec("AQ-8.8.2-5", "AQ-8.8.2-2")
def test_only_an_operator_who_signed_in_sees_codes(tmp_path: Path) -> None:
    async def test() -> None:
        office = Office(tmp_path)
        node = office.node
        await node.begin()
        id = verification(await node.report("drop_table users"))
        await node.waiting("unblock")
        code = node.code(id)
        # Not with a token that may see approvals, not as the node's own user, not by a guess.
        answers = [
            await office.ask("GET", "/approvals/codes"),
            await office.ask("GET", "/approvals/codes", authorization="Bearer clerk"),
            await office.ask("GET", "/approvals/codes", local=True),
            await office.ask("GET", "/approvals/codes", local=True, interlock_session="x" * 43),
            await office.ask("POST", "/approvals/codes", {"renew": id}, local=True),
            await office.ask("POST", "/approvals/codes", {"blocked": "ada"}, local=True),
            await office.ask("HEAD", "/approvals/codes", local=True),
        ]
        assert all(status >= 400 for status, _ in answers)
        # What those may see who may see approvals has no code in it.
        for path in ("/approvals/", f"/approvals/{(await node.waiting('unblock')).id}"):
            status, told = await office.ask("GET", path, local=True)
            assert status == 200
            answers.append((status, told))
        assert code not in json.dumps(answers)
        assert office.refusals

        session = await office.sign_in()
        status, shown = await office.ask("GET", "/approvals/codes", interlock_session=session)
        assert status == 200
        [challenge] = shown["challenges"]
        assert (challenge["id"], challenge["code"]) == (id, code)
        assert shown["blocks"][0]["caller"] == "ada"
        assert challenge["approval"] == (await node.waiting("unblock")).id
        node.close()

    run(test())


@pytest.mark.spec("AQ-8.8.2-5")
def test_a_lost_code_is_renewed(tmp_path: Path) -> None:
    async def test() -> None:
        office = Office(tmp_path)
        node = office.node
        await node.begin()
        id = verification(await node.report("drop_table users"))
        await node.waiting("unblock")
        session = await office.sign_in()
        status, made = await office.ask(
            "POST", "/approvals/codes", {"renew": id[:8]}, interlock_session=session
        )
        assert status == 200
        assert made["id"] != id
        old = await node.refused("verify_challenge", challenge_id=id, code=node.code(id))
        assert old.code == "TOKEN_INVALID"
        told = await node.answered(
            "verify_challenge", challenge_id=made["id"], code=made["code"].lower()
        )
        assert told["unblocked"]
        for sent, status in [
            ({"renew": id}, 404),
            ({"renew": ""}, 400),
            ({"renew": "x", "blocked": "y"}, 400),
            ({"blocked": "ada"}, 404),
            ({"code": "x"}, 400),
        ]:
            assert (await office.ask("POST", "/approvals/codes", sent, interlock_session=session))[
                0
            ] == status
        node.close()

    run(test())


@pytest.mark.spec("AQ-8.8.3-1")
def test_an_operator_asks_for_somebody_who_is_blocked(tmp_path: Path) -> None:
    async def test() -> None:
        office = Office(tmp_path)
        node = office.node
        await node.begin()
        await node.report("drop_table users")
        await node.waiting("unblock")
        node.pass_time(400)
        session = await office.sign_in()
        _, shown = await office.ask("GET", "/approvals/codes", interlock_session=session)
        assert (shown["challenges"], len(shown["blocks"])) == ([], 1)
        status, made = await office.ask(
            "POST", "/approvals/codes", {"blocked": "ada"}, interlock_session=session
        )
        assert status == 200
        record = node.approvals.find(made["approval"])
        assert record is not None
        await node.decide(record)
        assert len(node.loop.blocks) == 0
        assert {"challenge_renewed", "unblocked"} <= set(node.words("ada"))
        node.close()

    run(test())


def test_without_a_loop_there_is_no_such_path(tmp_path: Path) -> None:
    async def test() -> None:
        office = Office(tmp_path)
        office.app.verification = None
        status, told = await office.ask("GET", "/approvals/codes", local=True)
        assert (status, told["error"]) == (404, "unknown_approval")
        office.node.close()

    run(test())
