"""What a call leaves behind in a whole node: nothing, and without the garbage collector's help."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

import uvloop

from interlock.app import Node
from interlock.aql.component import Aql
from interlock.core.call import Call
from interlock.core.config import parse_config
from interlock.core.upstreams.pending_request import PendingRequest

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def http_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, id: int) -> bytes:
    params = {"name": "demo.text_stats", "arguments": {"text": "x" * 100}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    body = json.dumps(message).encode()
    port = writer.get_extra_info("peername")[1]
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        "Mcp-Method: tools/call\r\nMcp-Name: demo.text_stats\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


def test_calls_are_freed_by_their_references_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        config = parse_config(
            "listen: 127.0.0.1:0\nstate_dir: state\n"
            f"servers: {{demo: {{command: {sys.executable}, args: [-m, interlock.demo]}}}}\n"
        )
        node = Node(config, base_dir=tmp_path)
        node.start()
        try:
            await node.until_settled(20)
            url = await node.listen()
            port = int(url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert b"characters" in await http_call(reader, writer, 1)
            gc.collect()
            gc.disable()
            # Tests that ran before in this process may keep some of their own. They are held here,
            # so that no new one can be taken for an old one that stood at the same address.
            known = [one for one in gc.get_objects() if isinstance(one, Call | PendingRequest)]
            addresses = {id(one) for one in known}
            try:
                for number in range(2, 30):
                    assert b"characters" in await http_call(reader, writer, number)
                left = [
                    one
                    for one in gc.get_objects()
                    if isinstance(one, Call | PendingRequest) and id(one) not in addresses
                ]
                # The last one may still be in the hands of whatever just answered it.
                assert len(left) <= 2, f"{len(left)} calls or exchanges of 28 were left"
            finally:
                gc.enable()
            writer.close()
        finally:
            await node.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


def test_a_node_of_tools_alone_makes_no_operations(tmp_path: Path) -> None:
    async def scene() -> None:
        config = parse_config(
            "listen: 127.0.0.1:0\nstate_dir: state\n"
            f"servers: {{demo: {{command: {sys.executable}, args: [-m, interlock.demo]}}}}\n"
        )
        node = Node(config, base_dir=tmp_path)
        node.start()
        try:
            await node.until_settled(20)
            url = await node.listen()
            port = int(url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert b"characters" in await http_call(reader, writer, 1)
            assert not node.component(Aql)._serves_operations
            assert not node.component(Aql).stage.in_use
            writer.close()
        finally:
            await node.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())
