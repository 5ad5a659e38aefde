"""The calls of executions: made once more, for nobody who waits, and what of them is kept."""

from __future__ import annotations

import msgspec

from interlock.call import Call, Client
from interlock.catalog.aql.operation import Operation
from interlock.pipeline.aql.asking import Asked
from interlock.pipeline.questions import capabilities_of
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.mcp import TASKS_EXTENSION, TOOLS_CALL


def kept(operation: Operation, arguments: bytes) -> bytes:
    """What is kept of what it is called with, for a retry: nothing where a secret is among it."""
    secret = {one.own for one in operation.signature.parameters if one.sensitive}
    return b"" if secret and secret & decode_members(arguments).keys() else arguments


def made_again(parent: Call, asked: Asked, operation: Operation, arguments: bytes) -> Call:
    """The call of an execution that is made once more, for whoever asks for that now."""
    view = parent.view
    if view is None and asked.face.mode != "plain":
        view = asked.face
    return Call(
        TOOLS_CALL,
        parent.face,
        parent.credentials,
        parent.client,
        operation.canonical,
        parent.owner,
        arguments=arguments,
        meta=parent.meta,
        session=parent.session,
        view=view,
        asked=Asked(operation, asked.face, None),
    )


def without_tasks(client: Client) -> Client:
    """An execution is followed by its own id: its upstream need not answer with a task."""
    if TASKS_EXTENSION.encode() not in client.capabilities:
        return client
    capabilities = dict(capabilities_of(client.capabilities))
    extensions = capabilities.get("extensions")
    if isinstance(extensions, dict):
        capabilities["extensions"] = {
            key: value for key, value in extensions.items() if key != TASKS_EXTENSION
        }
    return msgspec.structs.replace(client, capabilities=encode_value(capabilities))
