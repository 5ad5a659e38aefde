"""Where a node keeps its files: the journal, and the socket by which its user finds it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from interlock.config import Config

_SOCKET_NAME: Final = "node.sock"
_LONGEST_SOCKET_PATH: Final = 100
"""The kernel takes 107 bytes."""


def state_dir(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The folder of a node's own files: one per address, so that nodes do not share a journal."""
    if config.state_dir is not None:
        return base_dir / Path(config.state_dir).expanduser()
    state_home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state_home) / "interlock" / config.listen.replace(":", "-").strip("[]")


def socket_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The node's Unix socket: in the state folder, or somewhere shorter when that is too long."""
    path = state_dir(config, environ, base_dir) / _SOCKET_NAME
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    digest = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    runtime = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(runtime) / f"interlock-{os.getuid()}-{digest}" / _SOCKET_NAME


def journal_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    if config.journal.path is not None:
        return base_dir / Path(config.journal.path).expanduser()
    return state_dir(config, environ, base_dir) / "journal.db"


def make_private(folder: Path) -> None:
    """A folder that only this user can look into."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
