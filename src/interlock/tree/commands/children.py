"""Nodes that a parent starts: `up --stdio-parent` runs this node as one, `doctor` tries one.

A started node registers on stdin and stdout, and listens nowhere else. A trial has a registrar of
its own: nothing of it is left behind, and nothing that a running node knows is touched.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from interlock.core.config import Config, ConfigError, ServerConfig
from interlock.core.paths import state_home
from interlock.protocol.mcpax import ID_VARIABLE, SEGMENT_VARIABLE, is_segment
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.feature_reports import ChildRunner, Components, Trial
from interlock.terminal.node_client import CLIENT_INFO
from interlock.tree.child_connector import ChildConnector
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig, SubserversConfig
from interlock.tree.registrar import Registrar
from interlock.tree.store import TreeStore

if TYPE_CHECKING:
    from interlock.core.catalog.offering import RegisteredRole
    from interlock.core.upstreams.connection import ConnectorOptions
    from interlock.tree.dial_in import DialIn
    from interlock.tree.subserver_record import SubserverRecord


class StdioChild(ChildRunner):
    """A child on the stdio of its parent."""

    def __init__(self) -> None:
        """Raises ConfigError: no parent started this program."""
        self._segment = os.environ.get(SEGMENT_VARIABLE, "")
        if not is_segment(self._segment):
            raise ConfigError.of(
                "--stdio-parent is for nodes that another one starts; "
                f"${SEGMENT_VARIABLE} is not set",
                "give the parent a server with `transport: ax` and this command line",
            )

    def load(self, source: ConfigSource) -> Config:
        """The config, with a state folder of its own: by their addresses, which they do not listen
        on, all children would have the same."""
        config = source.load()
        if config.optional_section(ParentConfig) is not None:
            raise ConfigError.of(
                "`parent` is in the config, and --stdio-parent says that the parent started this "
                "node",
                "leave one of the two out",
            )
        if config.state_dir is not None:
            return config
        path = Path(source.path or "demo").absolute()
        # Two parents may start the same one.
        whole = os.fsencode(path) + os.environ.get(ID_VARIABLE, "").encode()
        name = f"child-{path.stem}-{blake2b(whole, digest_size=4).hexdigest()}"
        return replace(config, state_dir=str(state_home(os.environ) / name))

    async def stay_registered(self, node: Components) -> None:
        await node.component(Tree).register_on_stdio(self._segment).until_over()


class ChildTrial(Trial):
    """A child that is started, and registers."""

    def __init__(
        self, key: str, server: ServerConfig, registrar: Registrar, options: ConnectorOptions
    ) -> None:
        super().__init__(ChildConnector(key, server, registrar=registrar, **options))
        self._key = key
        self._registrar = registrar

    def registration(self) -> RegisteredRole:
        info = self._registrar.subserver(self._key)
        if info is None:
            return ""
        return "aggregator" if info.role == "aggregator" else "leaf"

    def release(self) -> None:
        # It is sent away, and not lost.
        self._registrar.close()


@contextmanager
def try_child(key: str, server: ServerConfig, options: ConnectorOptions) -> Iterator[Trial]:
    with _registering() as registrar:
        yield ChildTrial(key, server, registrar, options)


@contextmanager
def _registering() -> Iterator[Registrar]:
    """A registrar for children that are started: nobody can dial in to it."""
    with tempfile.TemporaryDirectory(prefix="interlock-") as folder:
        store = TreeStore(Path(folder) / "tree.db")
        registrar = Registrar(
            store=store,
            settings=SubserversConfig(),
            aggregator_id=str(uuid4()),
            node_info=msgspec.json.encode(CLIENT_INFO),
            begin=_nobody_dials_in,
            end=lambda _: None,
            taken=lambda _: False,
            on_change=lambda: None,
        )
        try:
            yield registrar
        finally:
            registrar.close()
            store.close()


def _nobody_dials_in(info: SubserverRecord, dial_in: DialIn) -> NoReturn:
    raise AssertionError(f"{info.segment} dialled in where there is no door")
