"""A node in the seat of the client under test: `python -m tests.conformance.client_driver URL`.

The suite starts this with the address of its server. A real node (`interlock up`) is put in front
of that address, and the official SDK's client behind the node does what the scenario wants of a
client: what the suite's server sees is the node. Where the server wants a sign-in, somebody runs
`interlock login`, with a browser that follows redirects. `SEAT_LISTS` names a tool that a relay
adds to the list of the suite's server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client, MCPError
from mcp.client import ClientRequestContext

from tests.conformance.listing_relay import listing
from tests.support.command_line import CommandLine, NodeProcess

SERVER = "server"
SESSION = "2025-11-25"
MOST_SIGN_INS = 2
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document that the suite knows. It is never fetched."""
FOLLOW = f"{sys.executable} -m tests.conformance.follow %s"

SCOPE_REJECTED = "which was requested already"
"""The node's warning when a sign-in did not grant the scope. Another sign-in would not help."""

EFFECTS = {"test_reconnection": "mutating"}
"""Tools of the suite that a node holds for approval by default, and their effect in the config.
The description of this one says that it triggers something."""

Does = Callable[[Client], Awaitable[None]]


# -- what a client answers


async def accept_defaults(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    """Somebody who leaves every field of a form as it is."""
    assert isinstance(params, types.ElicitRequestFormParams)
    fields = params.requested_schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return types.ElicitResult(action="accept", content=content)


async def confirm(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"confirmed": True})


async def complete(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text="something")
    return types.CreateMessageResult(role="assistant", content=said, model="a-model")


async def no_roots(context: ClientRequestContext) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


# -- what a client does


async def list_tools(client: Client) -> None:
    await client.list_tools()


async def add(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def add_if_listed(client: Client) -> None:
    """Call a tool that the suite's server may not list. The node rejects it in that case."""
    listed = any(tool.name == "add_numbers" for tool in (await client.list_tools()).tools)
    try:
        await client.call_tool("add_numbers", {"a": 5, "b": 3})
    except MCPError as error:
        if listed or error.code != types.INVALID_PARAMS:
            raise
    else:
        assert listed, "the node called a tool that the server does not list"


def call(*names: str) -> Does:
    async def calls(client: Client) -> None:
        await client.list_tools()
        for name in names:
            await client.call_tool(name, {})

    return calls


async def call_every_tool(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        required = tool.input_schema.get("required", [])
        await client.call_tool(tool.name, dict.fromkeys(required, "x"))


async def touch_everything(client: Client) -> None:
    await call_every_tool(client)
    for resource in (await client.list_resources()).resources:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name)


async def make_the_calls_asked_for(client: Client) -> None:
    await client.list_tools()
    for asked in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await client.call_tool(asked["name"], asked["arguments"])


async def give_the_schema_back(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    schema = tools["json_schema_2020_12_tool"].input_schema
    await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: dict[str, tuple[Does, dict[str, Any]]] = {
    "initialize": (list_tools, {}),
    "tools_call": (add, {}),
    "sse-retry": (call("test_reconnection"), {}),
    "elicitation-sep1034-client-defaults": (
        call("test_client_elicitation_defaults"),
        {"elicitation_callback": accept_defaults},
    ),
    "request-metadata": (
        add_if_listed,
        {
            "elicitation_callback": accept_defaults,
            "sampling_callback": complete,
            "list_roots_callback": no_roots,
        },
    ),
    "sep-2322-client-request-state": (
        call(
            "test_mrtr_echo_state",
            "test_mrtr_unrelated",
            "test_mrtr_no_state",
            "test_mrtr_no_result_type",
        ),
        {"elicitation_callback": confirm},
    ),
    "http-standard-headers": (touch_everything, {}),
    "http-custom-headers": (make_the_calls_asked_for, {}),
    "http-invalid-tool-headers": (call_every_tool, {}),
    "json-schema-ref-no-deref": (list_tools, {}),
    "json-schema-2020-12-preservation": (give_the_schema_back, {}),
}


# -- the node, and who signs in for it


class SignInFailedError(Exception):
    """Nobody gets a token there."""


class Seat:
    """A node in front of the suite's server."""

    def __init__(self, folder: Path, url: str, scenario: str) -> None:
        self._world = CommandLine(folder)
        self._sign_ins = 0
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
        self._secrets = {
            name: context[name] for name in ("client_secret", "private_key_pem") if name in context
        }
        server: dict[str, Any] = {"url": url, "expose": "transparent", "effects": EFFECTS}
        if scenario.startswith("auth/"):
            server["oauth"] = self._oauth(scenario, context)
        self._world.config({SERVER: server}, listen="127.0.0.1:0")

    def _oauth(self, scenario: str, context: dict[str, Any]) -> dict[str, Any]:
        known = {name: context[name] for name in ("client_id", "issuer") if name in context}
        if "private_key_pem" in self._secrets:
            known["private_key"] = "${env:private_key_pem}"  # type: ignore[index]
        elif "client_secret" in self._secrets:
            known["client_secret"] = "${env:client_secret}"  # type: ignore[index]
        if "client-credentials" in scenario:
            return {"grant": "client_credentials", **known}  # type: ignore[dict-item]
        return {"client_metadata_url": CLIENT_DOCUMENT, **known}  # type: ignore[dict-item]

    def start(self) -> NodeProcess:
        """The node, once it serves the server's tools. Raises SignInFailedError."""
        node = self._world.up("--plain", **self._secrets)
        while True:
            message = node.wait_for_line(
                rf"upstream {SERVER}: ready|WARNING +upstream {SERVER}: (.*)"
            )
            if message[1] is None:
                return node
            if "interlock login" in message[1]:
                self.sign_in()
            elif SCOPE_REJECTED in message[1]:
                raise SignInFailedError(message[1])

    def sign_in(self) -> None:
        if self._sign_ins == MOST_SIGN_INS:
            raise SignInFailedError("it wants one sign-in after the other")
        self._sign_ins += 1
        result = self._world.run("login", SERVER, BROWSER=FOLLOW, **self._secrets)
        if result.returncode != 0:
            raise SignInFailedError(result.stderr)

    def close(self) -> None:
        self._world.close()


def use_first_tool(seat: Seat) -> Does:
    """Calls a tool; when that wants more rights than were granted, signs in again for them."""

    async def use(client: Client) -> None:
        tool = (await client.list_tools()).tools[0]
        try:
            await client.call_tool(tool.name, {})
        except MCPError as error:
            if "interlock login" not in str(error):
                raise
            await asyncio.to_thread(seat.sign_in)
            await client.call_tool(tool.name, {})

    return use


async def drive(url: str, revision: str, does: Does, answers: dict[str, Any]) -> None:
    mode = "legacy" if revision == SESSION else "auto"
    async with Client(url, mode=mode, **answers) as client:
        await does(client)


def main() -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    revision = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        url = sys.argv[1]
        if tool := os.environ.get("SEAT_LISTS"):
            url = stack.enter_context(listing(url, tool))
        seat = Seat(Path(place), url, scenario)
        try:
            does, answers = SCENARIOS.get(scenario, (use_first_tool(seat), {}))
            asyncio.run(drive(seat.start().url, revision, does, answers))
        finally:
            seat.close()


if __name__ == "__main__":
    main()
