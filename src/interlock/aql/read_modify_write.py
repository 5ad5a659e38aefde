"""Updates for servers that replace a resource instead of changing it: read, merge, write.

They run only where the config names the operation that reads. Two calls are made, and both are
authorized and journalled like any other. Changes between the two calls are not detected.
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
from interlock.aql.request import AqlRequest, ChildRequest, create_child_call
from interlock.core.call import Call
from interlock.core.ports import CallHost
from interlock.protocol.jsonrpc import decode_value, encode_value

# Merging, and detection of changes.

_ETAG_BYTES: Final = 8
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def merge(state: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Merge `change` into `state`: objects are merged, null removes a member, other values replace.

    Returns a new value. The arguments are not changed.
    """
    merged = dict(state)
    for name, new in change.items():
        if new is None:
            merged.pop(name, None)
        elif isinstance(new, dict):
            old = merged.get(name)
            # Without an existing object, null members must not be stored.
            merged[name] = merge(old if isinstance(old, dict) else {}, new)
        else:
            merged[name] = new
    return merged


def etag(value: Any) -> str:
    """Return a hash of the content, independent of the order of members."""
    return blake2b(_encode(value), digest_size=_ETAG_BYTES).hexdigest()


class ReadModifyWrite:
    """Runs updates that read, merge and write."""

    def __init__(
        self,
        host: CallHost,
        find: OperationFinder,
        check: Callable[[Call, AqlRequest], None] | None = None,
    ) -> None:
        """
        Args:
            check: checks the confirmation token of an update. Raises AqlError.
        """
        self._host = host
        self._find = find
        self._check = check

    async def run(self, request: AqlRequest) -> bytes:
        """Run an update and return the full response.

        `request.params` has `child` (the call of the update) and `reads` (the name of the reading
        operation).
        """
        parent, params = request.call, request.params or {}
        assert parent is not None
        child: Call = params["child"]
        update_request = cast("AqlRequest", child.operation_request)
        update = update_request.operation
        read_operation = self._find(params["reads"], request.operation_view)
        if read_operation is None:
            raise errors.unknown_operation(params["reads"], ())
        arguments_by_name = decode_value(child.arguments)
        names = read_operation.signature.names
        read_params = {
            parameter.name: Raw(encode_value(arguments_by_name[parameter.upstream_name]))
            for parameter in update.signature.parameters
            if not parameter.in_input
            and parameter.upstream_name in arguments_by_name
            and parameter.name in names
        }
        child_request = ChildRequest(
            SingleRequest(read_operation.name, read_params, Raw(encode_value(read_params))), None
        )
        outcome = await self._host.run(create_child_call(parent, parent.name, b"{}", child_request))
        envelope_of_read = decode_value(outcome.result)
        if not envelope_of_read.get("success"):
            return outcome.result
        state = envelope_of_read["data"]
        if not isinstance(state, dict):
            return envelope.write_failure(
                "CONFLICT_INVALID_STATE",
                f"'{read_operation.name}' returned no object to merge with.",
                {"operation": update.name},
            )
        arguments = encode_value(_merge_arguments(update, state, arguments_by_name))
        update_request.item = True
        write_call = create_child_call(
            parent, child.name, arguments, update_request, sends_progress=True
        )
        if update_request.confirmation and self._check is not None:
            # The operator confirmed the merged content, which is known only now.
            write_call.caller = parent.caller
            self._check(write_call, update_request)
        write_call.on_notification = lambda _, method, params: self._host.on_notification(
            parent, method, params
        )
        return (await self._host.run(write_call)).result


def _merge_arguments(
    update: Operation, state: dict[str, Any], arguments_by_name: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a complete update: the previous values and the changes."""
    input_parameters = [
        parameter for parameter in update.signature.parameters if parameter.in_input
    ]
    previous_values = {}
    for parameter in input_parameters:
        for name in (parameter.upstream_name, parameter.name):
            if state.get(name) is not None:
                previous_values[parameter.upstream_name] = state[name]
                break
    input_names = {parameter.upstream_name for parameter in input_parameters}
    change = {name: value for name, value in arguments_by_name.items() if name in input_names}
    other_arguments = {
        name: value for name, value in arguments_by_name.items() if name not in input_names
    }
    return {**other_arguments, **merge(previous_values, change)}
