"""Tests that the cache for repeated calls of the parent changes no result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http_client import meta
from tests.support.node import NodeThread
from tests.tree.test_parent_conversation import ParentEnd

SAID = json.dumps(meta(), separators=(",", ":")).encode()
OTHER = SAID.replace(b'Capabilities":{}', b'Capabilities":{"roots":{}}')
HEAD = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":'
END = b',"_meta":' + SAID + b"}}"


def echo_call(id: int, text: str = "x", said: bytes = SAID) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"shop.echo",'
        b'"arguments":{"text":"%b"},"_meta":%b}}' % (id, text.encode(), said)
    )


def send_and_read(parent: ParentEnd, data: bytes) -> Any:
    """Send data as the parent and return the response."""
    before = len(parent.sent)
    parent.running.do(lambda: parent.conversation.process_message(data))
    parent.running.until(lambda: len(parent.sent) > before, "an answer")
    return parent.sent[-1]


@pytest.fixture
def both(shared_node: NodeThread) -> Iterator[tuple[ParentEnd, ParentEnd]]:
    """Return a conversation with repeated calls, and a new conversation."""
    made = ParentEnd(shared_node), ParentEnd(shared_node)
    yield made
    for one in made:
        one.close()


def repeat_call(parent: ParentEnd) -> ParentEnd:
    for id in range(1, 4):
        assert send_and_read(parent, echo_call(id, f"text {id}"))["id"] == id
    assert parent.conversation._last_suffix == END
    return parent


def test_each_call_is_independent(both: tuple[ParentEnd, ParentEnd]) -> None:
    one = repeat_call(both[0])
    assert OTHER != SAID
    for id, said in enumerate((SAID, OTHER, SAID, OTHER, OTHER, OTHER, SAID, SAID), 10):
        answer = send_and_read(one, echo_call(id, f"text {id}", said))
        assert answer["id"] == id
        assert f"text {id}" in json.dumps(answer["result"])


@pytest.mark.parametrize(
    "odd",
    [
        # the end of something else than the params
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"shop.echo","arguments":{}},'
        b'"id":{"a":1' + END,
        # two of them: which one counts is for the general reader to say
        HEAD + b'{"name":"shop.echo","_meta":{},"arguments":{"text":"x"}' + END,
        HEAD + b'{"name":"shop.echo","\\u005fmeta":{},"arguments":{"text":"x"}' + END,
        # not whole
        HEAD + b'{"name":"shop.echo","arguments":{"text":"x"' + END,
        HEAD + b'{"name":"shop.echo","arguments":{"text":"x' + END,
        HEAD + b'{"name":"shop.echo",' + END,
        HEAD + b"{" + END,
        END,
        # more than a plain call, or less
        HEAD + b'{"name":"shop.echo","arguments":{"text":"x"},"task":{}' + END,
        HEAD + b'{"arguments":{"text":"x"}' + END,
        HEAD + b'{"name":"","arguments":{"text":"x"}' + END,
        b'{"jsonrpc":"1.0","id":7,"method":"tools/call","params":{"name":"shop.echo"' + END,
        b'{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"shop.echo"' + END,
        b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":""' + END,
        # one without any: the end is another
        HEAD + b'{"name":"shop.echo","arguments":{"text":"x"}}}',
        # no text
        HEAD + b'{"name":"shop.echo","arguments":{"text":"\xff"}' + END,
    ],
)
def test_unusual_message_is_read_as_first_message(
    both: tuple[ParentEnd, ParentEnd], odd: bytes
) -> None:
    one, new = both
    assert send_and_read(repeat_call(one), odd) == send_and_read(new, odd)


def test_rejects_duplicate_pending_id(
    shared_node: NodeThread, both: tuple[ParentEnd, ParentEnd]
) -> None:
    one = repeat_call(both[0])
    held = HEAD + b'{"name":"shop.hold","arguments":{"text":"again"}' + END
    shared_node.do(lambda: one.conversation.process_message(held))
    upstream_id = shared_node.shop.wait_for_hold("again")
    assert send_and_read(one, held)["error"]["code"] == -32600
    shared_node.do(lambda: shared_node.shop.release(upstream_id))
    shared_node.until(lambda: "result" in one.sent[-1], "the held call's answer")
