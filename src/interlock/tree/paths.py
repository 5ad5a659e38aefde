"""Where a node keeps what it knows of its tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlock.core.config import Config
from interlock.core.paths import state_dir
from interlock.tree.config import SubserversConfig

_SUBSERVER_SOCKET_NAME: Final = "ax.sock"


def subserver_socket_path(socket: Path) -> Path:
    """The socket beside it, on which subservers of this machine dial in."""
    return socket.with_name(_SUBSERVER_SOCKET_NAME)


def tree_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """What the node remembers of the tree: its identities, and who owns which segment."""
    return state_dir(config, environ, base_dir) / "tree.db"


def shared_leases_path(config: Config, base_dir: Path) -> Path | None:
    """The registration store that this node shares with others, if it does."""
    store = config.section(SubserversConfig).store
    return None if store is None else base_dir / Path(store).expanduser()
