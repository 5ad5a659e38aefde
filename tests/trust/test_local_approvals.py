"""Approvals on a node without a network address, over its local socket."""

from __future__ import annotations

import asyncio
import fcntl
import json
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig, TlsConfig
from interlock.core.config.trust import CertificateConfig, IdentityConfig
from interlock.core.journal.journal import deliver_on_loop
from interlock.core.paths import (
    approvals_socket_path,
    approvals_sockets,
    signing_keys_path,
    socket_path,
)
from interlock.terminal.approvals_client import ApprovalsClient
from interlock.terminal.node_discovery import TargetNode
from interlock.trust.signing_keys import SigningKeys
from tests.channels.certificates import Authority
from tests.support.timeouts import HANG_TIMEOUT


class AddresslessNode:
    """A node that one client has to itself, and that client."""

    def __init__(self, folder: Path) -> None:
        demo = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
        self.config = Config(servers={"demo": demo}, state_dir=str(folder))
        self.folder = folder
        self.node = Node(self.config, base_dir=folder, environ={})
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stream = self.node.stream(self._write)

    @property
    def socket(self) -> Path:
        return socket_path(self.config, {}, self.folder)

    @property
    def inbox(self) -> ApprovalsClient:
        return ApprovalsClient(TargetNode(None, self.config, self.folder, self.socket))

    def _write(self, data: bytes) -> None:
        for line in data.splitlines():
            self.said.put_nowait(json.loads(line))

    async def ask(self, id: int, method: str, **params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.stream.feed(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(HANG_TIMEOUT):
            while (answer := await self.said.get()).get("id") != id:
                continue
        return answer


async def test_operator_decides_on_node_without_address(tmp_path: Path) -> None:
    addressless = AddresslessNode(tmp_path)
    node = addressless.node
    approving = node.trust.approving
    assert approving is not None
    try:
        node.start()
        await approving.listen_locally(addressless.socket)
        assert approvals_sockets(addressless.socket) == [approvals_socket_path(addressless.socket)]
        await node.until_settled(HANG_TIMEOUT)
        about = {"name": "t", "version": "1"}
        await addressless.ask(
            1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=about
        )
        call = {"name": "demo.notes_delete", "arguments": {"id": 1}}
        held = (await addressless.ask(2, "tools/call", **call))["result"]["structuredContent"]
        assert held["status"] == "confirmation_required"
        # There is no page, and nobody is sent to one.
        assert "url" not in held
        inbox = addressless.inbox
        (one,) = await asyncio.to_thread(inbox.list_pending)
        assert one.id == held["confirmation_id"]
        sent = {"refuse": True, "reason": "no"}
        message = json.loads(await asyncio.to_thread(inbox.decide, one, sent))
        assert (message["state"], message["by"], message["note"]) == ("refused", "local", "no")
        answer = await addressless.ask(3, "tools/call", **call)
        assert "no" in answer["error"]["message"]
    finally:
        addressless.stream.closed()
        await node.stop()
    assert approvals_sockets(addressless.socket) == []


async def test_stale_socket_of_killed_node_is_skipped(tmp_path: Path) -> None:
    import socket as sockets

    addressless = AddresslessNode(tmp_path)
    node = addressless.node
    assert node.trust.approving is not None
    left = sockets.socket(sockets.AF_UNIX)
    left.bind(str(tmp_path / "ask-1.sock"))
    left.close()
    try:
        await node.trust.approving.listen_locally(addressless.socket)
        assert len(approvals_sockets(addressless.socket)) == 2
        assert await asyncio.to_thread(addressless.inbox.list_pending) == []
    finally:
        await node.stop()


async def test_client_certificate_may_view_approvals(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    own = ca.issue("node", "127.0.0.1")
    known = [
        CertificateConfig(name="desk", san="desk.example.com", may=["approve"]),
        CertificateConfig(name="edge", san="edge.example.com"),
    ]
    node = Node(
        Config(
            listen="127.0.0.1:0",
            state_dir=str(tmp_path / "state"),
            tls=TlsConfig(certificate=own.certificate, key=own.key, client_ca=ca.file),
            identity=IdentityConfig(certificates=known),
        ),
        base_dir=tmp_path,
        environ={},
    )
    try:
        await node.listen()
        url = (node.url or "").replace("/mcp", "/approvals/")
        for name, status in (("desk", 200), ("edge", 403), (None, 401)):
            context = ssl.create_default_context(cafile=ca.file)
            if name is not None:
                shown = ca.issue(name, f"{name}.example.com")
                context.load_cert_chain(shown.certificate, shown.key)
            async with httpx2.AsyncClient(verify=context, timeout=HANG_TIMEOUT) as http:
                answer = await http.get(url, headers={"Accept": "application/json"})
                assert answer.status_code == status, (name, answer.text)
    finally:
        await node.stop()


async def test_failing_journal_callback_does_not_affect_others() -> None:
    events: list[bool] = []
    last = asyncio.Event()

    def fails(kept: bool) -> None:
        raise OSError("nobody is there any more")

    def hears(kept: bool) -> None:
        events.append(kept)
        last.set()

    deliver_on_loop(asyncio.get_running_loop())([fails, hears], True)
    async with asyncio.timeout(HANG_TIMEOUT):
        await last.wait()
    assert events == [True]


async def test_locked_signing_keys_do_not_block_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(Config(state_dir=str(tmp_path)), base_dir=tmp_path, environ={})
    try:
        path = signing_keys_path(node.config, {}, tmp_path)
        before = node.tokens.public_keys()
        SigningKeys(path).rotate()
        waits, goes_on = threading.Event(), threading.Event()
        flock = fcntl.flock

        def held(file: int, how: int) -> None:
            waits.set()
            assert goes_on.wait(HANG_TIMEOUT)
            flock(file, how)

        monkeypatch.setattr(fcntl, "flock", held)
        node.tokens._on_timer()
        # The loop goes on while the file is waited for: else this would not be reached.
        assert await asyncio.to_thread(waits.wait, HANG_TIMEOUT)
        node.tokens._on_timer()
        assert node.tokens.public_keys() == before
        goes_on.set()
        looking = node.tokens._refreshing
        assert looking is not None
        await looking
        assert node.tokens.public_keys() != before
    finally:
        monkeypatch.undo()
        await node.stop()
