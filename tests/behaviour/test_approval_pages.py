"""Clients that can open a page for their user, in both protocol generations, and an operator at the
page.

The human here reads what the page shows and sends a signed answer to its address, as the page's own
script does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from joserfc.jwk import OKPKey
from mcp import Client, MCPError, UrlElicitationRequiredError

from interlock.core.config import ServerConfig
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig
from tests.support.http_client import initialize, message
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.waiting import wait_until
from tests.trust.approvals.gated import sign

LEDGER = Path(__file__).parent / "servers" / "ledger.py"


class Place:
    """A node, its one server, and the human who decides."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger"
        self.key = OKPKey.generate_key("Ed25519")
        (folder / "clerk.pem").write_bytes(self.key.as_pem(private=False))
        server = ServerConfig(
            command=sys.executable, args=[str(LEDGER), str(self.ledger)], sessions="shared"
        )
        self.node = NodeThread(
            folder,
            workshops={},
            servers={"s": server},
            approvals=ApprovalsConfig(
                anchors=[AnchorConfig("clerk", key=str(folder / "clerk.pem"))]
            ),
        )

    @property
    def url(self) -> str:
        return str(self.node.node.url)

    def executed(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0

    async def decides(self, url: str, decision: str = "approve", **more: str) -> Any:
        """The human opens the page, looks, and decides."""
        return await asyncio.to_thread(self._decides, url, decision, more)

    def _decides(self, url: str, decision: str, more: dict[str, str]) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=HANG_TIMEOUT
        ) as page:
            response = json.load(page)
        response = response.get("approval", response)
        assert response["tool"] == "s.press"
        now = int(time.time())
        claims = {
            "aud": response["aud"],
            "jti": response["id"],
            "args_sha256": response["args_sha256"],
            "iat": now,
            "exp": now + 300,
            "decision": decision,
            **more,
        }
        body = json.dumps({"proof": sign(self.key, claims)}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=HANG_TIMEOUT
        ) as answer:
            return json.load(answer)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.node.stop()


def text(result: types.CallToolResult) -> str:
    content, *_ = result.content
    assert isinstance(content, types.TextContent)
    return content.text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_plain_client_receives_approval_instructions(place: Place, mode: Any) -> None:
    async with Client(place.url, mode=mode) as client:
        result = await client.call_tool("s.press", {"button": "a"})
        assert result.is_error
        content = result.structured_content
        assert content is not None
        assert content["status"] == "confirmation_required"
        assert content["url"] in text(result)
        assert result.meta is not None
        assert result.meta["x-mcpax-status"] == "confirmation_required"
        await place.decides(content["url"])
        assert place.executed() == 1
        again = await client.call_tool("s.press", {"button": "a"})
        if mode == "legacy":
            first, earlier = again.content
            assert isinstance(first, types.TextContent)
            assert isinstance(earlier, types.TextContent)
            assert first.text == "press: done"
            assert content["confirmation_id"] in earlier.text
        else:
            # Without a session nobody knows that this is the same client.
            assert again.structured_content is not None
            assert again.structured_content["confirmation_id"] != content["confirmation_id"]
        assert place.executed() == 1


@pytest.mark.parametrize("patient", [True, False], ids=["decides first", "decides later"])
async def test_stateless_client_opens_page(place: Place, patient: bool) -> None:
    requests: list[types.ElicitRequestURLParams] = []
    deciding: list[asyncio.Task[Any]] = []

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        requests.append(params)
        task = asyncio.ensure_future(place.decides(params.url))
        deciding.append(task)
        if patient:
            await task
        return types.ElicitResult(action="accept")

    async with Client(place.url, elicitation_callback=elicit) as client:
        result = await client.call_tool("s.press", {"button": "a"})
        assert text(result) == "press: done"
        assert not result.is_error
        await asyncio.gather(*deciding)
    assert len(requests) == 1
    assert place.executed() == 1


async def test_stateless_client_declines(place: Place) -> None:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async with Client(place.url, elicitation_callback=elicit) as client:
        with pytest.raises(MCPError, match="declined"):
            await client.call_tool("s.press", {"button": "a"})
    assert place.executed() == 0


async def test_operator_rejects_call_of_stateless_client(place: Place) -> None:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        await place.decides(params.url, "refuse", reason="too dangerous")
        return types.ElicitResult(action="accept")

    async with Client(place.url, elicitation_callback=elicit) as client:
        with pytest.raises(MCPError, match="too dangerous"):
            await client.call_tool("s.press", {"button": "a"})
    assert place.executed() == 0


async def test_session_client_opens_page(place: Place) -> None:
    told: asyncio.Queue[types.ElicitCompleteNotification] = asyncio.Queue()

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError("it is an error of the call, not a question")

    async def hear(message: Any) -> None:
        notice = getattr(message, "root", message)
        if isinstance(notice, types.ElicitCompleteNotification):
            await told.put(notice)

    async with Client(
        place.url, mode="legacy", elicitation_callback=elicit, message_handler=hear
    ) as client:
        with pytest.raises(MCPError) as first:
            await client.call_tool("s.press", {"button": "a"})
        needed = UrlElicitationRequiredError.from_error(first.value.error)
        [page] = needed.elicitations
        with pytest.raises(MCPError) as second:
            await client.call_tool("s.press", {"button": "a"})
        [same] = UrlElicitationRequiredError.from_error(second.value.error).elicitations
        assert same.url == page.url
        await place.decides(page.url)
        async with asyncio.timeout(HANG_TIMEOUT):
            notice = await told.get()
        assert notice.params.elicitation_id == page.elicitation_id
        result = await client.call_tool("s.press", {"button": "a"})
        assert text(result) == "press: done"
    assert place.executed() == 1


async def test_accepting_without_page_approves_nothing(place: Place) -> None:
    """Whatever a client says that its user did: without a proof nothing happens."""

    rounds = 0

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        nonlocal rounds
        rounds += 1
        return types.ElicitResult(action="accept", content={"approved": True})

    async with Client(place.url, elicitation_callback=elicit) as client:
        call = asyncio.ensure_future(client.call_tool("s.press", {"button": "a"}))
        # The retry waits for the human; nobody comes, and the client gives up.
        inbox = place.node.node.trust.approving.approvals._inbox  # type: ignore[union-attr]
        await asyncio.to_thread(
            wait_until, "the retry waits", lambda: any(item.waiters for item in inbox)
        )
        assert not call.done()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert rounds == 1
    assert place.executed() == 0


@pytest.mark.parametrize("protocol", ["http session", "http stateless", "lines"])
def test_proof_is_accepted_over_every_protocol(place: Place, protocol: str) -> None:
    """`mcpax/confirm`, from a client that was given a proof by its user."""
    node = place.node
    press = {"name": "s.press", "arguments": {"button": protocol}}

    def asked(method: str, params: dict[str, Any]) -> Any:
        if protocol == "http session":
            return node.once(session.request(method, params)).json
        if protocol == "http stateless":
            name = params.get("name")
            return node.once(node.stateless(method, params, name=name)).json
        lines.send(message(method, params, 1) + b"\n")
        return lines.line()

    with node.local() as lines:
        if protocol == "lines":
            lines.send(message("initialize", initialize("2025-11-25"), 0) + b"\n")
            assert lines.line()["result"]
        session = node.session()
        held = asked("tools/call", press)["result"]["structuredContent"]
        now = int(time.time())
        claims = {
            "aud": held["aud"],
            "jti": held["confirmation_id"],
            "args_sha256": held["args_sha256"],
            "iat": now,
            "exp": now + 300,
            "decision": "approve",
        }
        forged = {"confirmation_id": held["confirmation_id"], "proof": held["nonce"]}
        assert asked("mcpax/confirm", forged)["error"]["code"] == -31007
        proof = {**forged, "proof": sign(place.key, claims)}
        result = asked("mcpax/confirm", proof)["result"]
        assert result["content"][0]["text"] == "press: done"
        assert asked("mcpax/confirm", proof)["error"]["code"] == -31035
        # Its own caller has been told with this: the next is a new call.
        again = asked("tools/call", press)["result"]["structuredContent"]
        assert again["confirmation_id"] != held["confirmation_id"]
    assert place.executed() == 1
