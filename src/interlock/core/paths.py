"""Paths of the files and sockets of a node: journal, upstream tokens, keys, Unix sockets."""

from __future__ import annotations

import logging
import os
import shlex
import socket as sockets
import stat
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from interlock.core.config import Config
from interlock.errors import CONFIG, InterlockError

_SOCKET_NAME: Final = "node.sock"
_TOKENS_NAME: Final = "tokens.db"
_log = logging.getLogger("interlock.node")
_SEAL_KEY_NAME: Final = "seal.key"
_MAX_SOCKET_PATH_BYTES: Final = 100
"""The kernel allows 107 bytes, and another socket with a longer name is next to this one."""


def state_dir(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the state folder of a node: one per address, so that nodes do not share a journal."""
    if config.state_dir is not None:
        return base_dir / Path(config.state_dir).expanduser()
    return state_home(environ) / folder_name(config.listen)


def state_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the state store."""
    return state_dir(config, environ, base_dir) / "state.db"


def state_home(environ: Mapping[str, str]) -> Path:
    """Return the folder that contains the state folders of all nodes of this user."""
    home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "interlock"


def folder_name(listen: str) -> str:
    """Return a folder name for an address: `[::1]:8420` → `--1-8420`."""
    return listen.replace("[", "").replace("]", "").replace(":", "-")


def socket_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the node's Unix socket: in the state folder, or in a runtime folder if the
    path would be too long."""
    path = state_dir(config, environ, base_dir) / _SOCKET_NAME
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        return path
    digest = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    runtime = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(runtime) / _short_name(digest) / _SOCKET_NAME


def approvals_socket_path(socket: Path) -> Path:
    """Return the path of the approvals socket of this process.

    Several nodes can share a state folder, for example one per client that starts its own node. The
    name is short, since the path of a socket is limited to about 100 bytes.

    Args:
        socket: the MCP socket of the state folder.
    """
    return socket.with_name(f"ask-{os.getpid()}.sock")


def approvals_sockets(socket: Path) -> list[Path]:
    """Return the approvals sockets of all nodes that share the state folder. A socket may be left
    over from a killed node."""
    return sorted(socket.parent.glob("ask-*.sock"))


def status_path(socket: Path) -> Path:
    """Return the path of the status socket, next to the socket of the node."""
    return socket.with_name("status.sock")


def user_config(environ: Mapping[str, str]) -> Path:
    """Return the folder of the config that commands use by default."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "interlock"


def journal_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    if config.journal.path is not None:
        return base_dir / Path(config.journal.path).expanduser()
    return state_dir(config, environ, base_dir) / "journal.db"


def tokens_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the upstream tokens. They belong to a user and not to a node: to sign in,
    a user need not know the address of the node."""
    if config.state_dir is not None:
        return state_dir(config, environ, base_dir) / _TOKENS_NAME
    return state_home(environ) / _TOKENS_NAME


def access_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the access database: API tokens and revocations."""
    return state_dir(config, environ, base_dir) / "access.db"


def signing_keys_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the keys that sign the tokens for the next hop."""
    return state_dir(config, environ, base_dir) / "signing_keys.json"


def pins_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the pins: the tool definitions that people accepted."""
    return state_dir(config, environ, base_dir) / "pins.db"


def seal_key(config: Config, environ: Mapping[str, str], base_dir: Path, size: int) -> bytes:
    """Read the key that seals state which callers send back. Create it if it is missing.

    If it cannot be stored (no space, no permission), it is valid for this process only.
    """
    key = os.urandom(size)
    try:
        path = state_dir(config, environ, base_dir) / _SEAL_KEY_NAME
        make_private(path.parent)
        # Atomic, and never in place of an existing key: two nodes may start at the same time.
        new_path = path.with_name(f"{_SEAL_KEY_NAME}.{os.getpid()}")
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
            os.link(new_path, path)
        except FileExistsError:
            stored_key = path.read_bytes()
            if len(stored_key) == size:
                return stored_key
            # A key of another size is not ours: nothing was sealed with it.
            os.replace(new_path, path)
        finally:
            new_path.unlink(missing_ok=True)
    except (OSError, InterlockError) as error:
        _log.warning(
            "seal key: cannot be stored (%s). After a restart, clients must repeat calls that wait "
            "for their input",
            error,
        )
    return key


def make_private(folder: Path) -> None:
    """Create a folder that only this user can read. Raises InterlockError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InterlockError(
            CONFIG,
            f"Cannot create the folder {folder}: {reason}. "
            "Set `state_dir` in the config, or $XDG_STATE_HOME, to a folder that this user can "
            "write to.",
        ) from None
    if not is_trusted(folder):
        raise InterlockError(
            CONFIG,
            f"The folder {folder} belongs to another user, or other users can read it. "
            "Remove it, or set `state_dir` to a shorter path.",
        )


def check_owner(path: Path) -> None:
    """Check that no other user owns or can change a file or folder of the node, except root.

    A user who can write there controls the node. ssh checks its keys in the same way.

    Raises:
        InterlockError: another user owns the path, or can change it.
    """
    try:
        status = path.stat()
        parent_status = path.parent.stat()
    except OSError:
        # The code that opens the path reports the error.
        return
    user = os.getuid()
    if status.st_uid not in (0, user):
        raise InterlockError(
            CONFIG,
            f"{path} belongs to another user (uid {status.st_uid}), who could control this "
            f"node. Check its content, then run: chown -R {user} {shlex.quote(str(path))}. "
            "Or set `state_dir` to a folder of your own.",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InterlockError(
            CONFIG,
            f"Other users can write to {path}, and so control this node. "
            f"Check its content, then run: chmod go-w {shlex.quote(str(path))}",
        )
    # In a folder with the sticky bit, such as /tmp, only the owner of a file can replace it.
    if parent_status.st_mode & stat.S_IWOTH and not parent_status.st_mode & stat.S_ISVTX:
        raise InterlockError(
            CONFIG,
            f"Every user can replace {path}: its folder is writable for all. "
            f"Run: chmod o-w {shlex.quote(str(path.parent))}",
        )


def check_state(folder: Path) -> None:
    """Create the state folder, and check that no other user owns or can change a file in it.
    Raises InterlockError."""
    make_private(folder)
    check_owner(folder)
    try:
        files = [Path(entry.path) for entry in os.scandir(folder) if entry.is_file()]
    except OSError as error:
        raise InterlockError(
            CONFIG, f"Cannot read the folder {folder}: {error.strerror or error}."
        ) from None
    for path in sorted(files):
        check_owner(path)


def is_trusted(folder: Path) -> bool:
    """Return whether a folder of sockets belongs to this user alone.

    Where others can create folders, such as in /tmp, another user could create it first. A folder
    that the config names is trusted.
    """
    if not folder.name.startswith(_short_name("")):
        return True
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return private and status.st_uid == os.getuid()


def _short_name(digest: str) -> str:
    return f"interlock-{os.getuid()}-{digest}"


def is_socket_open(path: Path) -> bool:
    """Return whether a process listens on this socket. A file may be left over from an ended
    process."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
