"""A real node with an upstream that changes its tools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from interlock.contracts.changed_tools import ToolChange
from interlock.contracts.component import Contracts
from interlock.contracts.config import ContractsConfig
from interlock.contracts.paths import tool_records_path
from interlock.contracts.registry.registry import ContractRegistry
from interlock.contracts.tool_records import ToolRecordStore
from interlock.core.config import PolicyConfig
from interlock.core.journal.reader import JournalRow
from tests.support.http_client import HANG_TIMEOUT, HttpResponse
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer, tool

TEXT = {"type": "string"}
ECHO = tool("echo", text=TEXT)
DEMANDING = tool("echo", "text", text=TEXT)
"""The same tool, of which `text` is now required."""
WIDER = tool("echo", text=TEXT, loud={"type": "boolean"})
ADD = tool("add", a={"type": "integer"})


class ChangingServer:
    """A node, its upstream `shop` and its contracts."""

    def __init__(self, folder: Path, *tools: dict[str, Any], **settings: Any) -> None:
        """`settings`: of `contracts`; those that begin with `node_` of the node itself."""
        self.folder = folder
        shop = ToolServer()
        shop.tools = list(tools or (ECHO, ADD))
        more = {
            name.removeprefix("node_"): settings.pop(name)
            for name in list(settings)
            if name.startswith("node_")
        }
        self.running = NodeThread(
            folder,
            workshops={"shop": shop},
            contracts=ContractsConfig(**settings),
            **{"policy": PolicyConfig(default="allow"), **more},
        )
        node = self.running.node
        self.contracts = node.component(Contracts)
        self.settle()

    @property
    def shop(self) -> ToolServer:
        return self.running.shop

    def close(self) -> None:
        self.running.stop()

    def configure(self, **settings: Any) -> None:
        config = self.running.config(contracts=ContractsConfig(**settings))
        self.running.wait(self.running.node.apply(config))

    # -- what happens

    def offers(self, *tools: dict[str, Any]) -> None:
        """The upstream lists these from now on, and the node has looked at them."""
        lists = len(self.shop.find_received("tools/list"))

        def change() -> None:
            self.shop.tools = list(tools)
            self.shop.announce()

        self.running.do(change)
        self.shop.wait_for(lambda: len(self.shop.find_received("tools/list")) > lists, "a new list")
        names = {f"shop.{one['name']}" for one in tools}
        self.running.until(
            lambda: (
                (offering := self.running.node.catalog.offering("shop")) is not None
                and {one.canonical for one in offering.tools} == names
                and all(self._listed(one) for one in tools)
            ),
            "the new list",
        )
        self.settle()

    def _listed(self, definition: dict[str, Any]) -> bool:
        offering = self.running.node.catalog.offering("shop")
        assert offering is not None
        for one in offering.tools:
            if one.upstream_name == definition["name"]:
                return bool(one.input_schema() == definition["inputSchema"])
        return False

    def settle(self) -> None:
        """Wait until the node has looked at everything, and been told of it."""
        watch = self.contracts._watch
        if watch is not None:
            assert watch.process_now().wait(HANG_TIMEOUT)
        # What it found out was handed to the loop before; this comes after.
        self.running.do(lambda: None)

    def call(self, name: str = "echo", **arguments: Any) -> HttpResponse:
        return self.running.once(self.running.call(name, arguments))

    def accept(self, name: str = "shop.echo", by: str = "operator") -> bool:
        """What `interlock contracts accept` does, and the node hears of it."""
        store = ToolRecordStore(self.path)
        try:
            seen = store.get(name)
            assert seen is not None
            done = store.accept(seen, by)
        finally:
            store.close()
        self.settle()
        return done

    # -- what is there

    @property
    def path(self) -> Path:
        node = self.running.node
        return tool_records_path(node.config, {}, node.base_dir)

    def status(self) -> list[ToolChange]:
        return self.running.do(self.contracts.changes)

    def listed(self) -> list[str]:
        return self.running.do(
            lambda: sorted(one.canonical for one in self.running.node.catalog.current.tools)
        )

    def journal(self, verb: str) -> list[JournalRow]:
        journal = self.running.node._journal
        assert journal is not None
        assert self.running.wait(journal.flush_async())
        return [row for row in journal.tail(1000) if row.verb == verb]

    def registry(self) -> ContractRegistry:
        return ContractRegistry(self.folder / "registry", clock=time.time)
