"""Child nodes: `up --stdio-parent` runs this node as a child, and `doctor` tests a child.

A child registers on stdin and stdout and does not listen. A trial has its own registrar, so it
leaves no data behind and does not affect a running node.
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
    """Runs this node as a child on the stdio of its parent."""

    def __init__(self) -> None:
        """Read the segment. Raises ConfigError if no parent started this program."""
        self._segment = os.environ.get(SEGMENT_VARIABLE, "")
        if not is_segment(self._segment):
            raise ConfigError.of(
                f"--stdio-parent is for nodes that a parent starts, but ${SEGMENT_VARIABLE} is "
                "not set",
                "add a server with `transport: ax` and this command to the parent's config",
            )

    def load(self, source: ConfigSource) -> Config:
        """Read the config, and give the child its own state folder.

        The default folder depends on the listen address. Children do not listen, so all of them
        would share one folder.
        """
        config = source.load()
        if config.optional_section(ParentConfig) is not None:
            raise ConfigError.of(
                "the config has a `parent`, but --stdio-parent selects the parent that started "
                "this node",
                "remove one of them",
            )
        if config.state_dir is not None:
            return config
        path = Path(source.path or "demo").absolute()
        # Two parents can start the same child.
        digest_input = os.fsencode(path) + os.environ.get(ID_VARIABLE, "").encode()
        name = f"child-{path.stem}-{blake2b(digest_input, digest_size=4).hexdigest()}"
        return replace(config, state_dir=str(state_home(os.environ) / name))

    async def stay_registered(self, node: Components) -> None:
        await node.component(Tree).register_on_stdio(self._segment).wait_until_ended()


class ChildTrial(Trial):
    """A trial of a child that the node starts."""

    def __init__(
        self, key: str, server: ServerConfig, registrar: Registrar, options: ConnectorOptions
    ) -> None:
        super().__init__(ChildConnector(key, server, registrar=registrar, **options))
        self._key = key
        self._registrar = registrar

    def registration(self) -> RegisteredRole:
        record = self._registrar.subserver(self._key)
        if record is None:
            return ""
        return "aggregator" if record.role == "aggregator" else "leaf"

    def release(self) -> None:
        # Dismiss the child, so that it does not count as lost.
        self._registrar.close()


@contextmanager
def open_child_trial(key: str, server: ServerConfig, options: ConnectorOptions) -> Iterator[Trial]:
    with _temporary_registrar() as registrar:
        yield ChildTrial(key, server, registrar, options)


@contextmanager
def _temporary_registrar() -> Iterator[Registrar]:
    """Create a temporary registrar that accepts only started children."""
    with tempfile.TemporaryDirectory(prefix="interlock-") as folder:
        store = TreeStore(Path(folder) / "tree.db")
        registrar = Registrar(
            store=store,
            settings=SubserversConfig(),
            aggregator_id=str(uuid4()),
            node_info=msgspec.json.encode(CLIENT_INFO),
            create_upstream=_reject_dial_in,
            remove_upstream=lambda _: None,
            is_segment_taken=lambda _: False,
            on_change=lambda: None,
        )
        try:
            yield registrar
        finally:
            registrar.close()
            store.close()


def _reject_dial_in(record: SubserverRecord, dial_in: DialIn) -> NoReturn:
    raise AssertionError(f"unexpected registration of {record.segment}")
