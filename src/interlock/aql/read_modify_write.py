"""Updates of servers that replace instead of changing: read, merge, write.

Only where the config names the operation that reads. Two calls are made, and both are judged and
journalled as any other; what the second one changes meanwhile is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from interlock.aql.language import envelope, errors
from interlock.aql.language.request import SingleRequest
from interlock.aql.operations import Operation, OperationFinder
from interlock.aql.request import AqlRequest, ChildRequest, child_of
from interlock.core.call import Call
from interlock.core.ports import CallHost
from interlock.protocol.jsonrpc import decode_value, encode_value

# -- What an update makes of what was there, and how one sees that something has changed since.

_ETAG_BYTES: Final = 8
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def deep(state: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`state` with `change` in it: objects are merged, null takes a field away, everything else
    replaces. Neither of the two is changed."""
    merged = dict(state)
    for name, new in change.items():
        if new is None:
            merged.pop(name, None)
        elif isinstance(new, dict):
            old = merged.get(name)
            # Merged into nothing where there was no object: what it takes away is not kept as null.
            merged[name] = deep(old if isinstance(old, dict) else {}, new)
        else:
            merged[name] = new
    return merged


def etag(value: Any) -> str:
    """The same for the same content, whatever the order of its members."""
    return blake2b(_encode(value), digest_size=_ETAG_BYTES).hexdigest()


class ReadModifyWrite:
    """Makes updates that read, merge and write."""

    def __init__(
        self,
        host: CallHost,
        find: OperationFinder,
        check: Callable[[Call, AqlRequest], None] | None = None,
    ) -> None:
        """`check`: looks at the confirmation token of an update. Raises AqlError."""
        self._host = host
        self._find = find
        self._check = check

    async def run(self, asked: AqlRequest) -> bytes:
        """The whole answer. `asked.params`: `child`, the update as it would be made, and `reads`,
        the name of the operation that reads."""
        parent, params = asked.call, asked.params or {}
        assert parent is not None
        child: Call = params["child"]
        request = cast("AqlRequest", child.operation_request)
        update = request.operation
        reads = self._find(params["reads"], asked.face)
        if reads is None:
            raise errors.no_operation(params["reads"], ())
        given = decode_value(child.arguments)
        known = reads.signature.names
        wanted = {
            one.name: Raw(encode_value(given[one.own]))
            for one in update.signature.parameters
            if not one.inside and one.own in given and one.name in known
        }
        look = ChildRequest(SingleRequest(reads.name, wanted, Raw(encode_value(wanted))), None)
        read = await self._host.run(child_of(parent, parent.name, b"{}", look))
        answer = decode_value(read.result)
        if not answer.get("success"):
            return read.result
        state = answer["data"]
        if not isinstance(state, dict):
            return envelope.failure(
                "CONFLICT_INVALID_STATE",
                f"'{reads.name}' gave no object to merge with.",
                {"operation": update.name},
            )
        arguments = encode_value(_merged(update, state, given))
        request.item = True
        made = child_of(parent, child.name, arguments, request, follows=True)
        if request.confirmation and self._check is not None:
            # A human confirmed what is written, which is known only now.
            made.caller = parent.caller
            self._check(made, request)
        made.on_notification = lambda _, method, said: self._host.on_notification(
            parent, method, said
        )
        return (await self._host.run(made)).result


def _merged(update: Operation, state: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an update that says everything: what was there, and what changes of it."""
    parts = [one for one in update.signature.parameters if one.inside]
    before = {}
    for one in parts:
        for name in (one.own, one.name):
            if state.get(name) is not None:
                before[one.own] = state[name]
                break
    inside = {one.own for one in parts}
    change = {name: value for name, value in given.items() if name in inside}
    beside = {name: value for name, value in given.items() if name not in inside}
    return {**beside, **deep(before, change)}
