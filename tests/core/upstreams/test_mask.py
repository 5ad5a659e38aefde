"""Masking of secrets in messages of a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.call import RelayedError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.listing import list_tools
from interlock.core.upstreams.pending_request import error_from_response
from interlock.core.upstreams.secret_mask import MIN_SECRET_LENGTH, Mask, mask_json, secret_values
from interlock.errors import DENIED, InterlockError
from interlock.protocol.jsonrpc import ErrorObject
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")

TELLTALE = """
import json, os, sys
secret = os.environ["GIVEN"]
print("starting with", secret, file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize" and os.environ["HOW"] == "refuse":
        answer = {"error": {"code": -32000, "message": "bad credential " + secret}}
    elif message["method"] == "initialize":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "I have " + secret, "version": "1"}}}
    elif message["method"] == "tools/list":
        answer = {"error": {"code": -32000, "message": "no list for " + secret,
                            "data": {"request": {"headers": [1.50, "Bearer " + secret]},
                                     "id": "req-1"}}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def connector(how: str, secret: str, folder: Path) -> Connector:
    script = folder / "telltale.py"
    script.write_text(TELLTALE)
    server = ServerConfig(
        command=sys.executable, args=[str(script)], env={"GIVEN": "x ${env:S}", "HOW": how}
    )
    environ = {"S": secret}

    def resolved(one: ServerConfig) -> ServerConfig:
        from interlock.core.config import resolve_server

        return resolve_server(one, environ=environ, base_dir=folder)

    return Connector(
        "telltale",
        server,
        node_info=b"{}",
        resolve=resolved,
        clock=lambda: 0.0,
        secrets=lambda item: secret_values(item, environ=environ, base_dir=folder),
    )


async def test_masks_secret_in_start_error(tmp_path: Path) -> None:
    one = connector("refuse", "corr/ectHorse7", tmp_path)
    with pytest.raises(InterlockError) as caught:
        await one.connect()
    assert "bad credential" in caught.value.message
    assert "Horse7" not in caught.value.message
    assert "Horse7" not in "".join(one.stderr)


async def test_masks_secret_in_server_name_and_errors(tmp_path: Path) -> None:
    peer = await connector("name", "corr/ectHorse7", tmp_path).connect()
    try:
        assert "Horse7" not in str(peer.server_info)
        with pytest.raises(UpstreamResponseError) as answered:
            await peer.request("tools/list")
        assert "Horse7" not in answered.value.message
        data = json.loads(bytes(answered.value.raw_data or b""))
        assert data == {"request": {"headers": [1.5, "Bearer x ***"]}, "id": "req-1"}
        with pytest.raises(InterlockError) as caught:
            await list_tools(peer, timeout=HANG_TIMEOUT)
        assert "Horse7" not in caught.value.message
    finally:
        await peer.close()


def test_masks_secret_in_relayed_details() -> None:
    peer = SimpleNamespace(mask=mask_of("secret-value"), speaks_ax=True)
    exchange: Any = SimpleNamespace(upstream_client=peer, method="tools/call")
    data = Raw(b'{"detail":"It has secret-value.","rule":"r","path":["secret-value"]}')
    error = error_from_response(exchange, ErrorObject(DENIED.ax_code, DENIED.ax_name, data))
    assert isinstance(error, RelayedError)
    assert error.message == "It has ***."
    assert error.data == {"rule": "r", "path": ["***"]}


@given(st.text(min_size=MIN_SECRET_LENGTH), st.text(), st.text())
def test_never_shows_known_secret(secret: str, before: str, after: str) -> None:
    mask = Mask()
    try:
        mask.add([secret])
    except UnicodeEncodeError:
        return  # a lone surrogate can stand in no environment and no file
    shown: Any = mask(before + secret + after)
    assert secret not in shown or secret in "***"


def mask_of(*secrets: str) -> Mask:
    mask = Mask()
    mask.add(secrets)
    return mask


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r'"a secret-value"', r'"a ***"'),
        (r'["\u0073ecret-value", 1.50, {"a":null}]', r'["***", 1.50, {"a":null}]'),
        (r'{"x" : "\"secret-value\"" , "x":1e2}', r'{"x" : "\"***\"" , "x":1e2}'),
        (r'{"secret-value":true}', r'{"***":true}'),
        (r'{"a":"b\/c","d":"secret-value\u00e9"}', r'{"a":"b\/c","d":"***\u00e9"}'),
        ('"one\\\\", "secret-value"', '"one\\\\", "***"'),
        (r'"line\nbreak-secret"', r'"***"'),
    ],
)
def test_masks_only_json_strings(before: str, after: str) -> None:
    mask = mask_of("secret-value", "line\nbreak-secret")
    assert bytes(mask_json(mask, Raw(before.encode()))).decode() == after


@pytest.mark.parametrize(
    "written",
    ["null", "1.50", '{ "a" : [1e2, "b\\u0041\\/", "\\ud800"] , "a":1 }', '"é"'],
)
def test_keeps_bytes_without_secret(written: str) -> None:
    data = Raw(written.encode())
    for mask in (mask_of("secret-value"), mask_of(), str):
        assert mask_json(mask, data) is data


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_VALUES, st.booleans())
def test_masked_json_has_masked_strings(value: Any, ascii: bool) -> None:
    mask = mask_of("secret-value")

    def with_secret(part: Any, shown: str) -> Any:
        if isinstance(part, str):
            return part + shown
        if isinstance(part, list):
            return [with_secret(each, shown) for each in part]
        if isinstance(part, dict):
            return {key: with_secret(each, shown) for key, each in part.items()}
        return part

    written = json.dumps(with_secret(value, "secret-value"), ensure_ascii=ascii)
    try:
        data = Raw(written.encode())
    except UnicodeEncodeError:
        return  # a lone surrogate comes escaped
    assert json.loads(bytes(mask_json(mask, data))) == with_secret(value, "***")
