"""Workspaces with drivers for tests, and nodes that run on them: real files, real processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw

from interlock.app.node import Node
from interlock.core.call import Call, Client, Credentials, NotificationHandler
from interlock.core.config import Config, parse_config
from interlock.core.journal.reader import JournalRow
from interlock.drivers.driver import Driver
from interlock.drivers.folders import DriverFolders
from interlock.drivers.status import DriverStatus
from interlock.errors import InterlockError
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import TOOLS_CALL, Era
from tests.support.clock import ManualClock
from tests.support.upstreams import HANG_TIMEOUT

SERVER = Path(__file__).parents[1] / "behaviour" / "servers" / "driver_server.py"
CLIENT = Client(Era.SESSION, "2025-11-25", "tests")

TEXT_IN = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SAID = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
ANY = {"type": "object"}


def front_matter(fields: Mapping[str, Any], body: str = "") -> str:
    """JSON is YAML: nothing has to be quoted by hand."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", body])


class Workspace:
    """A folder with drivers, contracts and a config."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard_file = folder / "heard.jsonl"
        (folder / ".drivers").mkdir(exist_ok=True)

    # -- files

    def contract(self, id: str = "text.echo", version: str = "1.0.0", **fields: Any) -> str:
        """Write a TOOL.md; by what drivers name it."""
        major = version.partition(".")[0]
        place = self.folder / "tools" / f"{id}-{major}" / "TOOL.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        said = {
            "name": id,
            "id": id,
            "description": f"The contract {id}.",
            "version": version,
            "inputs": TEXT_IN,
            "outputs": SAID,
            **fields,
        }
        place.write_text(front_matter(said), encoding="utf-8")
        return f"./tools/{id}-{major}/TOOL.md"

    def serves(
        self, contract: str, tool: str, version: str = "^1.0.0", **more: Any
    ) -> dict[str, Any]:
        """An entry of `implements`."""
        mcp = {key: more.pop(key) for key in ("argument_mapping", "result_extract") if key in more}
        return {
            "tool": contract,
            "version": version,
            "metadata": {"mcp": {"tool_name": tool, **mcp}},
            **more,
        }

    def echoes(self, contract: str, version: str = "^1.0.0", **more: Any) -> dict[str, Any]:
        """An entry by which `echo` of the server serves a contract like `text.echo`."""
        return self.serves(contract, "echo", version, argument_mapping={"text": "message"}, **more)

    def server(self, *options: object, **more: Any) -> dict[str, Any]:
        """The server block of `driver_server.py`."""
        args = [str(SERVER), "--heard", str(self.heard_file), *map(str, options)]
        return {"kind": "binary", "path": sys.executable, "args": args, **more}

    def driver(self, id: str = "echo-mcp", *implements: dict[str, Any], **fields: Any) -> Path:
        """Write a DRIVER.md; where it is."""
        folder = self.folder / ".drivers" / str(fields.pop("folder", id))
        folder.mkdir(exist_ok=True)
        said = {
            "name": id,
            "id": id,
            "description": f"The driver {id}.",
            "version": "1.0.0",
            "kind": "mcp",
            "server": self.server(),
            "transport": "stdio",
            "network": {"egress": []},
            "implements": list(implements),
            **fields,
        }
        file = folder / "DRIVER.md"
        file.write_text(front_matter(said), encoding="utf-8")
        return file

    def secrets(self, *entries: dict[str, Any], driver: str = "echo-mcp") -> None:
        """Write a driver's SECRETS.md."""
        folder = self.folder / ".drivers" / driver
        folder.mkdir(exist_ok=True)
        (folder / "SECRETS.md").write_text(
            front_matter({"secrets": list(entries)}), encoding="utf-8"
        )

    def config(self, *, more: str = "", **drivers: Any) -> Config:
        # Tests talk to this machine only.
        settings = {"verify": "first_use", "local_egress": True, **drivers}
        text = f"listen: 127.0.0.1:0\nstate_dir: state\ndrivers: {json.dumps(settings)}\n{more}"
        return parse_config(text)

    # -- what the servers heard

    def heard(self, method: str | None = None) -> list[dict[str, Any]]:
        if not self.heard_file.exists():
            return []
        lines = map(json.loads, self.heard_file.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if method is None or line.get("method") == method]

    def methods(self) -> list[str]:
        return [message["method"] for message in self.heard() if "method" in message]


class Running:
    """A node on a workspace, and somebody who calls its tools."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.drivers = node.component(DriverFolders).drivers
        self._ids = itertools.count(1)

    def request(
        self,
        verb: str,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        hear: NotificationHandler | None = None,
    ) -> Call:
        return Call(
            verb,
            "test",
            Credentials("local"),
            CLIENT,
            name,
            arguments=Raw(json.dumps(arguments or {}).encode()),
            meta=_raw(meta),
            extra_params=_raw(extra),
            on_notification=hear,
        )

    async def result(self, name: str, arguments: Mapping[str, Any], **more: Any) -> Any:
        """The raw result of a tool. Raises InterlockError."""
        return await self.run(self.request(TOOLS_CALL, name, arguments, **more))

    async def run(self, call: Call) -> Any:
        async with asyncio.timeout(HANG_TIMEOUT):
            return json.loads((await self.node.pipeline.run(call)).result)

    async def call(
        self, name: str, /, meta: Mapping[str, Any] | None = None, **arguments: Any
    ) -> Any:
        """The structured value of a tool."""
        result = await self.result(name, arguments, meta=meta)
        return result.get("structuredContent", result)

    async def failed(
        self, name: str, /, meta: Mapping[str, Any] | None = None, **arguments: Any
    ) -> tuple[str, str]:
        """What a tool says that went wrong: its code, and its words."""
        result = await self.result(name, arguments, meta=meta)
        assert result["isError"] is True, result
        return result["_meta"]["dev.interlock/error"]["code"], result["content"][0]["text"]

    async def refused(
        self, name: str, /, meta: Mapping[str, Any] | None = None, **arguments: Any
    ) -> InterlockError:
        """The error of a call that has to fail."""
        try:
            got = await self.call(name, meta, **arguments)
        except InterlockError as error:
            return error
        raise AssertionError(f"{name} answered {got}")

    @property
    def tools(self) -> list[str]:
        """What is listed."""
        return sorted(tool.canonical for tool in self.node.catalog.current.tools)

    def listed(self, name: str) -> dict[str, Any]:
        """How a tool reads in the list."""
        tool = self.node.catalog.current.by_name[name]
        response = decode_value(b'{"name":%b%b' % (json.dumps(name).encode(), tool.listed))
        assert isinstance(response, dict)
        return response

    def driver(self, id: str = "echo-mcp", major: int = 1) -> Driver:
        return self.drivers.lifecycle.drivers[f"driver:{id}@{major}"]

    def status(self, id: str = "echo-mcp") -> DriverStatus:
        (found,) = [item for item in self.drivers.status() if item.id == id]
        return found

    def pid(self, id: str = "echo-mcp") -> int | None:
        return self.status(id).pid

    async def until(self, found: Callable[[], Any], what: str = "") -> None:
        """Wait until something is true that nobody announces. Looked at in every turn."""
        try:
            async with asyncio.timeout(HANG_TIMEOUT):
                while not found():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise AssertionError(f"waited in vain: {what}") from None

    async def rows(self, *kinds: str) -> list[tuple[JournalRow, dict[str, Any]]]:
        """What the journal has of these kinds, in order: each entry and the row in it."""
        journal = self.node._journal
        assert journal is not None
        assert await journal.flush_async()
        return [(row, json.loads(row.detail)) for row in journal.tail(10_000) if row.verb in kinds]


@asynccontextmanager
async def running(
    workspace: Workspace,
    config: Config | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    before: Callable[[Node], None] = lambda _: None,
) -> AsyncIterator[Running]:
    """A node, running while the block lasts. `before` may put other clocks into it."""
    node = Node(
        config or workspace.config(), base_dir=workspace.folder, environ=dict(environ or {})
    )
    try:
        before(node)
        node.start()
        yield Running(node)
    finally:
        await node.stop()


def use_clock(node: Node, clock: ManualClock) -> None:
    """Replace the clock of a node's drivers."""
    lifecycle = node.component(DriverFolders).drivers.lifecycle
    lifecycle.clock = clock
    lifecycle.call_later = clock.call_later  # type: ignore[method-assign, assignment]


def _raw(members: Mapping[str, Any] | None) -> dict[str, Raw] | None:
    if members is None:
        return None
    return {key: Raw(json.dumps(value).encode()) for key, value in members.items()}
