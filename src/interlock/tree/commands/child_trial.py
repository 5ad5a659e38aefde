"""Tries a server with `transport: ax`: it gets somewhere to register for the moment.

Nothing of it is left behind, and nothing that a running node knows is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

import msgspec

from interlock.core.config import ServerConfig
from interlock.terminal.feature_reports import Trial
from interlock.terminal.node_client import OWN_INFO
from interlock.tree.child_connector import ChildConnector
from interlock.tree.config import SubserversConfig
from interlock.tree.registrar import Registrar
from interlock.tree.store import TreeStore

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Registered
    from interlock.core.upstreams.connection import ConnectorOptions
    from interlock.tree.dial_in import DialIn
    from interlock.tree.subserver_record import Subserver


class ChildTrial(Trial):
    """A child that is started, and registers."""

    def __init__(
        self, key: str, server: ServerConfig, registrar: Registrar, options: ConnectorOptions
    ) -> None:
        super().__init__(ChildConnector(key, server, registrar=registrar, **options))
        self._key = key
        self._registrar = registrar

    def registered(self) -> Registered:
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
            own_info=msgspec.json.encode(OWN_INFO),
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


def _nobody_dials_in(info: Subserver, dial_in: DialIn) -> NoReturn:
    raise AssertionError(f"{info.segment} dialled in where there is no door")
