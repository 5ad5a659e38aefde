"""JSON-RPC: any bytes are a message, a batch, or a protocol error; never anything else."""

from __future__ import annotations

from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import BadMessage, Message, decode_message

SEEDS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}}',
    b'{"jsonrpc":"2.0","id":"1","result":{}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m","data":[1]}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b' \r\n[{"jsonrpc":"2.0","id":1,"method":"ping"},1,{},[],{"id":{}}]',
    b"[]",
    b"{}",
    b"",
    b" ",
    b"null",
    b"{",
    b"[" * 100_000,
    b'{"id":' * 50_000,
    b'{"jsonrpc":"2.0","id":1,"params":' + b"[" * 100_000,
    b'{"jsonrpc":1,"id":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'[{"jsonrpc":1,"id":' + b"[" * 5_000 + b"]" * 5_000 + b"}]",
    b'{"jsonrpc":"2.0","id":1.5,"method":"a"}',
    b'{"jsonrpc":"2.0","id": 1 ,"method":"a"}',
    b'{"jsonrpc":"2.0","id":true,"method":1}',
    b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"a"}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":"\x00\n"}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"a"}',
    b'{"jsonrpc":"2.0","id":1,"method":"a"} trailing',
    b'{"jsonrpc":"2.0","id":1,"method":"a","result":1,"error":2}',
    b'{"jsonrpc":"2.0","id":' + b"9" * 10_000 + b',"method":"a"}',
]


def TestOneInput(data: bytes) -> None:
    try:
        decoded = decode_message(data)
    except ProtocolError:
        return
    if isinstance(decoded, list):
        assert decoded
        assert all(isinstance(item, Message | BadMessage) for item in decoded)
        return
    kinds = [decoded.is_request, decoded.is_notification, decoded.is_response]
    assert kinds.count(True) == 1
