"""The official SDK's server for the conformance suite, made to speak one era, or both.

    python one_generation_server.py both|session|stateless reference|neutral  # in its folder

It prints the port that it listens on. The SDK's server itself answers whichever era it is asked in;
here whoever asks in the other one is refused as a server of that era refuses.

Its tools that ask something of the client are each written for one wire. `neutral` replaces them by
tools of the same names that ask in the way of the wire they are called on: what still fails across
the eras then is not for the fixture's sake.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server import NotificationOptions
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, ListRoots, Resolve, Sample
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.types import (
    CreateMessageResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from mcp_everything_server import server as everything  # type: ignore[import-not-found]
from pydantic import BaseModel

SESSION = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
ASKS = "test_input_required_result_"


class Name(BaseModel):
    name: str


class Confirmation(BaseModel):
    ok: bool


class Color(BaseModel):
    color: str


class Deletion(BaseModel):
    confirm: bool


class Words(BaseModel):
    context: str


# -- questions; the SDK puts each of them in the way of the wire


def _say(text: str) -> list[SamplingMessage]:
    return [SamplingMessage(role="user", content=TextContent(type="text", text=text))]


def ask_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


def ask_confirmation() -> Elicit[Confirmation]:
    return Elicit("Please confirm", Confirmation)


def ask_color(name: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> Elicit[Color]:
    return Elicit("What is your favorite color?", Color)


def ask_capital() -> Sample:
    return Sample(_say("What is the capital of France?"), max_tokens=100)


def ask_greeting() -> Sample:
    return Sample(_say("Generate a greeting"), max_tokens=50)


def ask_roots() -> ListRoots:
    return ListRoots()


def ask_prompt(prompt: str) -> Sample:
    return Sample(_say(prompt), max_tokens=100)


def ask_message(message: str) -> Elicit[everything.UserResponse]:
    return Elicit(message, everything.UserResponse)


def ask_defaults() -> Elicit[everything.SEP1034DefaultsSchema]:
    return Elicit("Please provide user information", everything.SEP1034DefaultsSchema)


def ask_enums() -> Elicit[everything.EnumSchemasTestSchema]:
    return Elicit("Please select values", everything.EnumSchemasTestSchema)


# -- tools for both wires


async def sampling(prompt: str, said: Annotated[CreateMessageResult, Resolve(ask_prompt)]) -> str:
    return f"LLM response: {said.content}"


async def elicitation(
    message: str, got: Annotated[ElicitationResult[everything.UserResponse], Resolve(ask_message)]
) -> str:
    return f"User response: action={got.action}"


async def defaults(
    got: Annotated[ElicitationResult[everything.SEP1034DefaultsSchema], Resolve(ask_defaults)],
) -> str:
    return f"Elicitation completed: action={got.action}"


async def enums(
    got: Annotated[ElicitationResult[everything.EnumSchemasTestSchema], Resolve(ask_enums)],
) -> str:
    return f"Elicitation completed: action={got.action}"


async def one_name(name: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    return f"Hello, {name.data.name if name.action == 'accept' else '?'}!"


async def one_sample(said: Annotated[CreateMessageResult, Resolve(ask_capital)]) -> str:
    return f"Model said: {said.content}"


async def list_roots(found: Annotated[ListRootsResult, Resolve(ask_roots)]) -> str:
    return f"Client exposed {len(found.roots)} root(s)."


async def confirmed(
    ok: Annotated[ElicitationResult[Confirmation], Resolve(ask_confirmation)],
) -> str:
    return "state-ok: confirmation received"


async def two_rounds(
    name: Annotated[ElicitationResult[Name], Resolve(ask_name)],
    color: Annotated[ElicitationResult[Color], Resolve(ask_color)],
) -> str:
    return "done"


async def several(
    name: Annotated[ElicitationResult[Name], Resolve(ask_name)],
    said: Annotated[CreateMessageResult, Resolve(ask_greeting)],
    found: Annotated[ListRootsResult, Resolve(ask_roots)],
) -> str:
    return "All inputs received."


# -- tools for the session wire only: what the SDK's questions cannot say there


async def several_at_once(ctx: Context) -> str:
    """The SDK puts one question after the other; a server may well put three at once."""

    async def sample() -> None:
        await ctx.session.create_message(
            messages=_say("Generate a greeting"), max_tokens=50, related_request_id=ctx.request_id
        )

    async def roots() -> None:
        await ctx.session.send_request(ListRootsRequest(), ListRootsResult)

    async with anyio.create_task_group() as group:
        group.start_soon(ctx.elicit, "What is your name?", Name)
        group.start_soon(sample)
        group.start_soon(roots)
    return "All inputs received."


async def confirm_delete(filename: str, ctx: Context) -> str:
    """For the suite's scenario of tasks that ask: to a client that speaks tasks this is one."""
    got = await ctx.elicit(f"Delete {filename}?", Deletion)
    return f"asked: {got.action}"


async def multi_input(ctx: Context) -> str:
    async with anyio.create_task_group() as group:
        group.start_soon(ctx.elicit, "One?", Deletion)
        group.start_soon(ctx.elicit, "Two?", Deletion)
    return "both answered"


async def what_the_client_can(ctx: Context) -> str:
    can = ctx.client_capabilities
    if can is not None and can.sampling is not None:
        await ctx.session.create_message(
            messages=_say("Say hello"), max_tokens=50, related_request_id=ctx.request_id
        )
    if can is not None and can.elicitation is not None:
        await ctx.elicit("What is your name?", Name)
    return "asked"


async def prompt_that_asks(ctx: Context) -> list[UserMessage]:
    got = await ctx.elicit("What context should the prompt use?", Words)
    text = got.data.context if got.action == "accept" else "?"
    return [UserMessage(role="user", content=TextContent(type="text", text=text))]


async def change_tools(ctx: Context) -> str:
    """The SDK's server tells listeners of the stateless wire only."""
    await ctx.session.send_tool_list_changed()
    return "tool list changed"


async def change_prompts(ctx: Context) -> str:
    await ctx.session.send_prompt_list_changed()
    return "prompt list changed"


def make_neutral(era: str) -> None:
    """Put the tools above in the place of those written for one wire."""
    instead: dict[str, Callable[..., Any]] = {
        "test_sampling": sampling,
        "test_elicitation": elicitation,
        "test_elicitation_sep1034_defaults": defaults,
        "test_elicitation_sep1330_enums": enums,
        f"{ASKS}elicitation": one_name,
        f"{ASKS}sampling": one_sample,
        f"{ASKS}list_roots": list_roots,
        f"{ASKS}request_state": confirmed,
        f"{ASKS}multi_round": two_rounds,
        f"{ASKS}multiple_inputs": several_at_once if era == "session" else several,
        f"{ASKS}tampered_state": confirmed,
    }
    mcp = everything.mcp
    if era == "session":
        instead[f"{ASKS}capabilities"] = what_the_client_can
        instead["test_trigger_tool_change"] = change_tools
        instead["test_trigger_prompt_change"] = change_prompts
        core: Any = mcp._lowlevel_server
        core.create_initialization_options = partial(
            core.create_initialization_options, NotificationOptions(True, True, True)
        )
        mcp.add_tool(confirm_delete, name="confirm_delete", description="asks once")
        mcp.add_tool(multi_input, name="multi_input", description="asks twice")
        mcp.remove_prompt(f"{ASKS}prompt")
        asks = Prompt.from_function(prompt_that_asks, name=f"{ASKS}prompt", description="asks")
        mcp.add_prompt(asks)
    for name, tool in instead.items():
        mcp.remove_tool(name)
        mcp.add_tool(tool, name=name, description=name)


# -- one era


class OneEra:
    """Refuses who speaks the other era, in the words of a server of this one."""

    def __init__(self, app: Any, era: str) -> None:
        self._app = app
        self._era = era

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
            if self._era == "session" and version and version not in SESSION:
                message = f"Bad Request: Unsupported protocol version: {version}"
                await _refuse(send, 400, {"code": -32000, "message": message})
                return
            if self._era == "stateless" and scope["method"] != "POST":
                await _refuse(send, 405, None)
                return
            if self._era == "stateless" and (not version or version in SESSION):
                data = {"supported": [STATELESS], "requested": version}
                message = "Unsupported protocol version"
                await _refuse(send, 400, {"code": -32022, "message": message, "data": data})
                return
        await self._app(scope, receive, send)


async def _refuse(send: Any, status: int, error: dict[str, Any] | None) -> None:
    body, headers = b"", [(b"allow", b"POST")]
    if error is not None:
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    era, fixture = sys.argv[1:]
    if fixture == "neutral":
        make_neutral(era)
    app: Any = everything.mcp.streamable_http_app(
        event_store=everything.event_store, retry_interval=100
    )
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    # Whoever connects now is served as soon as the application is there.
    print(listening.getsockname()[1], flush=True)
    settings = uvicorn.Config(OneEra(app, era), log_level="critical")
    uvicorn.Server(settings).run(sockets=[listening])


if __name__ == "__main__":
    main()
