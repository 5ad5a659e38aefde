"""Somewhere to register for the moment: what a server with `transport: ax` needs to be tried.

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

from interlock.core.config import SubserversConfig
from interlock.terminal.node_client import OWN_INFO
from interlock.tree.registrar import Registrar
from interlock.tree.store import TreeStore

if TYPE_CHECKING:
    from interlock.tree.dial_in import DialIn
    from interlock.tree.subserver_record import Subserver


@contextmanager
def registering() -> Iterator[Registrar]:
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
