"""`interlock topic call`: calls a tool of a participant, or proposes the call, and prints the
result."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import msgspec
import typer

from interlock.errors import UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol.kinds import request_kind
from interlock.protocol.mcp import TOOLS_CALL, TOOLS_LIST
from interlock.terminal import log_lines, output
from interlock.terminal.call_arguments import ArgumentError, read_arguments, read_json_object
from interlock.topics.client import Chat, Event, Participant
from interlock.topics.client.participant import DEFAULT_TIMEOUT_SECONDS
from interlock.topics.commands.gateway_target import GatewayTarget
from interlock.topics.commands.message_format import put_on_one_line
from interlock.topics.commands.plain import connect_once, wrap_for_terminal

_LIST_TIMEOUT_SECONDS: Final = 5.0
_MAX_REMARK_LENGTH: Final = 2_000


async def make_call(
    gateway: GatewayTarget,
    topic: str,
    to: str,
    tool: str,
    words: list[str],
    json: str | None,
    *,
    propose: bool,
    timeout: float | None,
) -> bytes:
    """Make or propose the call. Returns the result as JSON.

    Raises InterlockError, and BadParameter for invalid arguments.
    """
    # No retries: a failure is reported once, by its error.
    log_lines.log_to_stderr(logging.ERROR)
    try:
        arguments = {} if json is None else read_json_object(json)
        async with connect_once(gateway, topic) as participant:
            if words:
                arguments = read_arguments(words, await _read_schema(participant, to, tool))
            params = {"name": tool, "arguments": arguments}
            if propose or not participant.can_send(request_kind(TOOLS_CALL, tool)):
                result = await _propose_call(participant, to, params, timeout)
            else:
                seconds = DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
                result = await participant.request(to, TOOLS_CALL, params, seconds)
    except ArgumentError as bad:
        raise typer.BadParameter(str(bad)) from None
    if not isinstance(result, dict):
        raise InterlockError(UPSTREAM_PROTOCOL, f"{to} returned an invalid tool result.")
    return msgspec.json.encode(result)


async def _propose_call(
    participant: Participant, to: str, params: dict[str, Any], timeout: float | None
) -> Any:
    id = ""

    def on_chat(event: Event) -> None:
        head, chat = event.envelope.head, event.content
        if not id or head.correlation_id != id or not isinstance(chat, Chat):
            return
        if chat.end_reason and head.sender == to:
            # The proposal has ended: its error reports that.
            return
        words = put_on_one_line(f"{head.sender}: {chat.text}", _MAX_REMARK_LENGTH)
        output.print_note(wrap_for_terminal(words, sys.stderr))
        if chat.end_reason:
            output.print_note("Others may still fulfil it. Ctrl-C stops waiting.")

    participant.on(Chat, on_chat)
    proposal = await participant.propose(to, TOOLS_CALL, params)
    id = proposal.id
    output.print_note(
        f"Proposed to {put_on_one_line(to, 128)} as {id}. Waiting until a participant fulfils it; "
        "Ctrl-C "
        "stops waiting."
    )
    return await proposal.outcome(timeout)


async def _read_schema(participant: Participant, to: str, tool: str) -> dict[str, Any]:
    """Return the input schema of the tool. Empty if it is not available: then all values are
    strings."""
    if not participant.can_send(request_kind(TOOLS_LIST)):
        return {}
    try:
        result = await participant.request(to, TOOLS_LIST, {}, _LIST_TIMEOUT_SECONDS)
    except InterlockError:
        # The call itself reports the problem.
        return {}
    tools = result.get("tools") if isinstance(result, dict) else None
    for definition in tools if isinstance(tools, list) else ():
        if isinstance(definition, dict) and definition.get("name") == tool:
            schema = definition.get("inputSchema")
            return schema if isinstance(schema, dict) else {}
    return {}
