"""An MCP server on the official SDK's low level that offers everything, in one era or in both.

    python complete.py stdio|http session|stateless|both [name]

Over HTTP it prints its port when it listens. What it asks of its client it asks in the way of the
wire that it is called on. Longer than 500 lines because it runs as a script, and alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import warnings
from functools import partial
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.message import SessionMessage

STATELESS = "2026-07-28"
ENVELOPE = "io.modelcontextprotocol/protocolVersion"
PICTURE = "aGVsbG8="
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Your name", "default": "x"}},
    "required": ["name"],
}
ICON = types.Icon(src="https://example.com/icon.png", mime_type="image/png", sizes=["48x48"])

NAME = sys.argv[3] if len(sys.argv) > 3 else "complete"
Context = ServerRequestContext[Any, Any]

bus = InMemorySubscriptionBus()
listening_handler = ListenHandler(bus)
learnt: list[str] = []
cancelled: list[str] = []
levels: list[str] = []
subscribed: list[tuple[str, str]] = []
"""Every resources/subscribe and resources/unsubscribe that came."""
followers: dict[str, set[Any]] = {}
waiting: dict[str, anyio.Event] = {}
sessions: dict[int, dict[str, Any]] = {}
"""What is remembered of each session."""


def tool(name: str, /, **properties: Any) -> types.Tool:
    schema = {"type": "object", "properties": properties}
    return types.Tool(name=name, input_schema=schema)


TOOLS = [
    types.Tool(
        name="rich",
        title="A rich one",
        description="Answers with everything.",
        icons=[ICON],
        input_schema={"type": "object"},
        output_schema={
            "type": "object",
            "properties": {"answer": {"type": "integer"}},
            "required": ["answer"],
        },
        annotations=types.ToolAnnotations(title="Rich", read_only_hint=True),
        _meta={"com.example/tool": {"deep": [1, 2]}},
    ),
    tool("ask", kind={"type": "string"}),
    tool("ask_twice"),
    tool("log"),
    tool("report", steps={"type": "integer"}),
    tool("wait", name={"type": "string"}),
    tool("seen"),
    tool("learn", kind={"type": "string"}, name={"type": "string"}),
    tool("touch", uri={"type": "string"}),
    tool("remember", what={"type": "string"}),
    tool("recall"),
    tool("later", what={"type": "string"}),
    tool("what_came_of_it"),
    tool("protocol"),
    tool("client"),
]


async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
    more = [tool(item.removeprefix("tools:")) for item in learnt if item.startswith("tools:")]
    return types.ListToolsResult(tools=[*TOOLS, *more])


def text(said: Any) -> types.CallToolResult:
    words = said if isinstance(said, str) else json.dumps(said)
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)])


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Any:
    given = params.arguments or {}
    match params.name:
        case "rich":
            return rich()
        case "ask":
            return await ask(ctx, params, [given["kind"]])
        case "ask_twice":
            return await ask(ctx, params, ["form", "sampling"])
        case "log":
            for level in ("debug", "info", "warning", "error"):
                await ctx.session.send_log_message(
                    level, f"at {level}", logger="complete", related_request_id=ctx.request_id
                )
            return text("logged")
        case "report":
            for step in range(1, given["steps"] + 1):
                await ctx.session.report_progress(step, given["steps"], f"step {step}")
            return text("reported")
        case "wait":
            try:
                await ctx.session.report_progress(1, 2, "waiting")
                await anyio.sleep_forever()
            finally:
                cancelled.append(given["name"])
                if given["name"] in waiting:
                    waiting[given["name"]].set()
        case "seen":
            actual = {"_meta": (ctx.params or {}).get("_meta")}
            return text({**actual, "levels": levels, "subscribed": subscribed})
        case "client":
            can = ctx.session.client_capabilities
            return text({} if can is None else can.model_dump(by_alias=True, exclude_none=True))
        case "learn":
            learnt.append(f"{given['kind']}:{given['name']}")
            await announce(ctx, given["kind"])
            return text("learnt")
        case "touch":
            await touch(given["uri"])
            return text("touched")
        case "remember":
            kept_for(ctx)["what"] = given["what"]
            return text("remembered")
        case "recall":
            return text(kept_for(ctx).get("what", "nothing"))
        case "later":
            mine = kept_for(ctx)
            mine["gate"] = anyio.Event()
            mine["task"] = asyncio.create_task(later(ctx, given["what"], mine))
            return text("later")
        case "what_came_of_it":
            mine = kept_for(ctx)
            mine["gate"].set()
            await mine["task"]
            return text(mine["came"])
        case "protocol":
            return text(ctx.protocol_version)
    return text(f"{params.name} is here")


def kept_for(ctx: Context) -> dict[str, Any]:
    """What is remembered of this session."""
    connection = ctx.session._connection
    # It is kept too: another one must never be taken for it.
    return sessions.setdefault(id(connection), {"connection": connection})


async def later(ctx: Context, what: str, mine: dict[str, Any]) -> None:
    """Does something that belongs to no call: the one that asked for it is over by then."""
    if what == "log":
        await mine["gate"].wait()
        message = f"a secret of {mine.get('what')}"
        await ctx.session.send_log_message("error", message, logger="complete")
        mine["came"] = "said"
        return
    try:
        result = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
        mine["came"] = plain(result)
    except Exception as error:
        mine["came"] = {"error": str(error)}


def rich() -> types.CallToolResult:
    return types.CallToolResult(
        content=[
            types.TextContent(
                type="text",
                text='{"answer": 42}',
                annotations=types.Annotations(audience=["user"], priority=0.5),
                _meta={"com.example/text": 1},
            ),
            types.ImageContent(type="image", data=PICTURE, mime_type="image/png"),
            types.AudioContent(type="audio", data=PICTURE, mime_type="audio/wav"),
            types.ResourceLink(
                type="resource_link", uri="note://shared", name="shared", title="T", icons=[ICON]
            ),
            types.EmbeddedResource(
                type="resource",
                resource=types.TextResourceContents(
                    uri="note://shared", text=NAME, mime_type="text/plain"
                ),
            ),
        ],
        structured_content={"answer": 42},
        _meta={"com.example/result": {"own": True}, "io.modelcontextprotocol/private": "hop"},
    )


# -- questions


def questions(kinds: list[str]) -> dict[str, Any]:
    request: dict[str, Any] = {}
    for kind in kinds:
        if kind == "sampling":
            said = types.TextContent(type="text", text="Which way?")
            request[kind] = types.CreateMessageRequest(
                params=types.CreateMessageRequestParams(
                    messages=[types.SamplingMessage(role="user", content=said)],
                    max_tokens=100,
                    system_prompt="Be brief.",
                    temperature=0.5,
                )
            )
        elif kind == "form":
            request[kind] = types.ElicitRequest(
                params=types.ElicitRequestFormParams(message="Who?", requested_schema=FORM)
            )
        elif kind == "url":
            request[kind] = types.ElicitRequest(
                params=types.ElicitRequestURLParams(
                    message="Go there.", url="https://example.com/consent"
                )
            )
        else:
            request[kind] = types.ListRootsRequest()
    return request


async def ask(ctx: Context, params: Any, kinds: list[str], settle: Any = None) -> Any:
    """Ask, and answer with what came back."""
    answers: dict[str, Any] = {}
    if ctx.protocol_version == STATELESS:
        state = json.dumps({"for": kinds})
        if params.input_responses is None or set(params.input_responses) != set(kinds):
            return types.InputRequiredResult(input_requests=questions(kinds), request_state=state)
        if params.request_state != state:
            raise ValueError(f"this is not my state: {params.request_state}")
        answers = params.input_responses
    else:
        for kind in kinds:
            answers[kind] = await ask_session(ctx, kind)
    actual = {
        kind: item
        if isinstance(item, dict)
        else item.model_dump(mode="json", by_alias=True, exclude_none=True)
        for kind, item in answers.items()
    }
    return text(actual) if settle is None else settle(actual)


def plain(one: Any) -> Any:
    return one.model_dump(mode="json", by_alias=True, exclude_none=True)


async def ask_session(ctx: Context, kind: str) -> Any:
    session, about = ctx.session, ctx.request_id
    try:
        if kind == "sampling":
            asked = questions([kind])[kind].params
            return await session.create_message(
                asked.messages,
                max_tokens=asked.max_tokens,
                system_prompt=asked.system_prompt,
                temperature=asked.temperature,
                related_request_id=about,
            )
        if kind == "form":
            return await session.elicit_form("Who?", FORM, related_request_id=about)
        if kind == "url":
            page = "https://example.com/consent"
            return await session.elicit_url("Go there.", page, "e-1", related_request_id=about)
        return await session.list_roots()
    except Exception as error:
        refusal = getattr(error, "error", None)
        return {"error": getattr(refusal, "code", 0), "message": str(error)}


# -- resources and prompts


async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
    own = types.Resource(
        uri=f"note://{NAME}/own",
        name="own",
        title="Its own",
        icons=[ICON],
        mime_type="text/plain",
        size=3,
        annotations=types.Annotations(priority=1.0),
        _meta={"com.example/resource": 1},
    )
    more = [item.removeprefix("resources:") for item in learnt if item.startswith("resources:")]
    return types.ListResourcesResult(
        resources=[
            own,
            types.Resource(uri="note://shared", name="shared"),
            *(types.Resource(uri=f"note://{NAME}/{item}", name=item) for item in more),
        ]
    )


async def list_templates(ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
    days = types.ResourceTemplate(
        uri_template=f"day://{NAME}/{{day}}", name="day", title="A day", icons=[ICON]
    )
    return types.ListResourceTemplatesResult(resource_templates=[days])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    if uri.endswith("/nowhere"):
        raise types_error(-32002, "No such resource")
    if uri.endswith("/asks"):

        def settle(found: Any) -> Any:
            return contents(uri, json.dumps(found))

        return await ask(ctx, params, ["form"], settle)
    return contents(uri, f"{uri} of {NAME}")


def contents(uri: str, words: str) -> types.ReadResourceResult:
    return types.ReadResourceResult(
        contents=[
            types.TextResourceContents(uri=uri, text=words, _meta={"com.example/part": 1}),
            types.BlobResourceContents(uri=uri, blob=PICTURE, mime_type="image/png"),
        ]
    )


def types_error(code: int, message: str) -> Exception:
    from mcp import MCPError

    return MCPError(code, message)


async def subscribe(ctx: Context, params: Any) -> types.EmptyResult:
    subscribed.append(("subscribe", str(params.uri)))
    followers.setdefault(str(params.uri), set()).add(ctx.session)
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: Any) -> types.EmptyResult:
    subscribed.append(("unsubscribe", str(params.uri)))
    followers.get(str(params.uri), set()).clear()
    return types.EmptyResult()


async def listen(ctx: Context, params: Any) -> Any:
    uris = params.notifications.resource_subscriptions or ()
    subscribed.append(("listen", ",".join(sorted(uris))))
    return await listening_handler(ctx, params)


async def touch(uri: str) -> None:
    await bus.publish(ResourceUpdated(uri))
    for session in list(followers.get(uri, ())):
        await session.send_resource_updated(uri)


async def announce(ctx: Context, kind: str) -> None:
    await bus.publish(ToolsListChanged() if kind == "tools" else ResourcesListChanged())
    if ctx.protocol_version != STATELESS:
        if kind == "tools":
            await ctx.session.send_tool_list_changed()
        else:
            await ctx.session.send_resource_list_changed()


async def list_prompts(ctx: Context, params: Any) -> types.ListPromptsResult:
    review = types.Prompt(
        name="review",
        title="Review",
        description="Reviews code.",
        icons=[ICON],
        arguments=[types.PromptArgument(name="lang", title="Language", required=True)],
        _meta={"com.example/prompt": 1},
    )
    return types.ListPromptsResult(prompts=[review, types.Prompt(name="asks")])


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Any:
    if params.name == "asks":
        return await ask(ctx, params, ["form"], lambda found: prompt(json.dumps(found)))
    return prompt(f"Review this {(params.arguments or {})['lang']} code for {NAME}.")


def prompt(words: str) -> types.GetPromptResult:
    link = types.ResourceLink(type="resource_link", uri="note://shared", name="shared")
    return types.GetPromptResult(
        description="A prompt.",
        messages=[
            types.PromptMessage(role="user", content=types.TextContent(type="text", text=words)),
            types.PromptMessage(role="assistant", content=link),
        ],
    )


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    about = params.ref.name if params.ref.type == "ref/prompt" else params.ref.uri
    known = (params.context.arguments if params.context else None) or {}
    values = [f"{params.argument.value}+", f"{NAME}|{about}", *known.values()]
    return types.CompleteResult(completion=types.Completion(values=values, total=9, has_more=True))


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    levels.append(params.level)
    return types.EmptyResult()


# -- serving


def make() -> Server[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server: Any = Server(
            NAME,
            version="4.5",
            title="The complete one",
            instructions=f"Ask {NAME} for anything.",
            icons=[ICON],
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
            on_subscribe_resource=subscribe,
            on_unsubscribe_resource=unsubscribe,
            on_subscriptions_listen=listen,
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_completion=complete,
            on_set_logging_level=set_level,
        )
    server.create_initialization_options = partial(
        server.create_initialization_options, NotificationOptions(True, True, True)
    )
    return server  # type: ignore[no-any-return]


class OneEra:
    """Refuses who speaks the other era, in the words of a server of this one."""

    def __init__(self, app: Any, era: str) -> None:
        self._app = app
        self._era = era

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode()
            newer = version == STATELESS
            if self._era == "session" and newer:
                await refuse(send, -32600, "Bad Request: Unsupported protocol version", None)
                return
            if self._era == "stateless" and not newer:
                data = {"supported": [STATELESS], "requested": version}
                await refuse(send, -32022, "Unsupported protocol version", data)
                return
        await self._app(scope, receive, send)


async def refuse(send: Any, code: int, message: str, data: Any) -> None:
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def over_stdio(era: str) -> None:
    server = make()
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        forward, kept = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def sift() -> None:
            async with forward:
                async for item in read:
                    message = item.message if isinstance(item, SessionMessage) else None
                    newer = ENVELOPE in (
                        (getattr(message, "params", None) or {}).get("_meta") or {}
                    )
                    error = None
                    if isinstance(message, types.JSONRPCRequest):
                        if era == "session" and newer:
                            error = types.ErrorData(code=-32602, message="Invalid parameters")
                        elif era == "stateless" and not newer:
                            error = types.ErrorData(
                                code=-32022,
                                message="Unsupported",
                                data={"supported": [STATELESS], "requested": "?"},
                            )
                    if error is not None and isinstance(message, types.JSONRPCRequest):
                        answer = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                        await write.send(SessionMessage(answer))
                    else:
                        await forward.send(item)

        tasks.start_soon(sift)
        await server.run(kept, write, server.create_initialization_options())
        tasks.cancel_scope.cancel()


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transport, era = sys.argv[1:3]
    if transport == "stdio":
        anyio.run(over_stdio, era)
        return
    app = OneEra(make().streamable_http_app(), era)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    # Whoever connects now is served as soon as the application is there.
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


if __name__ == "__main__":
    main()
