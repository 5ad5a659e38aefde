"""Updates of servers that replace instead of changing: read, merge, write.

Only where the config names the operation that reads. Two calls are made, and both are judged and
journalled as any other; what the second one changes meanwhile is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from interlock.call import Call
from interlock.catalog.aql.operation import Operation
from interlock.pipeline.aql.asking import Asked
from interlock.pipeline.aql.children import Host, Unread, child_of
from interlock.protocol.aql import envelope, faults
from interlock.protocol.aql.merge import deep
from interlock.protocol.aql.request import Single
from interlock.protocol.aql.words import Face
from interlock.protocol.jsonrpc import decode_value, encode_value

Find = Callable[[str, Face], Operation | None]


class Merging:
    """Makes such updates."""

    def __init__(
        self, host: Host, find: Find, check: Callable[[Call, Asked], None] | None = None
    ) -> None:
        """`check`: looks at the confirmation token of an update. Raises AqlError."""
        self._host = host
        self._find = find
        self._check = check

    async def run(self, asked: Asked) -> bytes:
        """The whole answer. `asked.params`: `child`, the update as it would be made, and `reads`,
        the name of the operation that reads."""
        parent, params = asked.call, asked.params or {}
        assert parent is not None
        child: Call = params["child"]
        request: Asked = child.asked
        update = request.operation
        reads = self._find(params["reads"], asked.face)
        if reads is None:
            raise faults.no_operation(params["reads"], ())
        given = decode_value(child.arguments)
        known = reads.signature.names
        wanted = {
            one.name: Raw(encode_value(given[one.own]))
            for one in update.signature.parameters
            if not one.inside and one.own in given and one.name in known
        }
        look = Unread(Single(reads.name, wanted, Raw(encode_value(wanted))), None)
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
        made.on_notification = lambda _, method, said: self._host.heard(parent, method, said)
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
