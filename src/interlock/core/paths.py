"""Where a node keeps its files: the journal, the tokens of upstreams, and the socket by which its
user finds it."""

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
_LONGEST_SOCKET_PATH: Final = 100
"""The kernel takes 107 bytes, and another socket with a longer name stands beside this one."""


def state_dir(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The folder of a node's own files: one per address, so that nodes do not share a journal."""
    if config.state_dir is not None:
        return base_dir / Path(config.state_dir).expanduser()
    return state_home(environ) / folder_name(config.listen)


def state_home(environ: Mapping[str, str]) -> Path:
    """The folder in which every node of this user has its own."""
    home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "interlock"


def folder_name(listen: str) -> str:
    """`[::1]:8420` → `--1-8420`: an address as the name of a folder."""
    return listen.replace("[", "").replace("]", "").replace(":", "-")


def socket_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The node's Unix socket: in the state folder, or somewhere shorter when that is too long."""
    path = state_dir(config, environ, base_dir) / _SOCKET_NAME
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    digest = blake2b(os.fsencode(path), digest_size=8).hexdigest()
    runtime = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(runtime) / _short_name(digest) / _SOCKET_NAME


def approvals_socket_path(socket: Path) -> Path:
    """Where the approvals socket of this process is; `socket`: the MCP socket of its state folder.

    Several nodes may share that folder, such as one for each client that starts its own. The name
    is short: a path of a socket may be no longer than about a hundred bytes.
    """
    return socket.with_name(f"ask-{os.getpid()}.sock")


def approvals_sockets(socket: Path) -> list[Path]:
    """The approvals sockets of all nodes that share the state folder; one may be left over from a
    killed node."""
    return sorted(socket.parent.glob("ask-*.sock"))


def status_path(socket: Path) -> Path:
    """The socket beside it, on which a node tells how it fares."""
    return socket.with_name("status.sock")


def user_config(environ: Mapping[str, str]) -> Path:
    """Where the config is that a command takes when nobody names one."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "interlock"


def journal_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    if config.journal.path is not None:
        return base_dir / Path(config.journal.path).expanduser()
    return state_dir(config, environ, base_dir) / "journal.db"


def tokens_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The tokens of upstreams: of a user rather than of a node, so that whoever signs in need not
    know at which address the node listens."""
    if config.state_dir is not None:
        return state_dir(config, environ, base_dir) / _TOKENS_NAME
    return state_home(environ) / _TOKENS_NAME


def access_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Who may come to this node: its API tokens, and what was revoked."""
    return state_dir(config, environ, base_dir) / "access.db"


def signing_keys_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The keys by which the node signs the tokens that it makes for the next hop."""
    return state_dir(config, environ, base_dir) / "signing_keys.json"


def pins_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """What humans accepted of tools."""
    return state_dir(config, environ, base_dir) / "pins.db"


def seal_key(config: Config, environ: Mapping[str, str], base_dir: Path, size: int) -> bytes:
    """The key with which the node seals what its callers bring back; made when it is not there.

    Where it cannot be kept, for want of room or of rights, it lasts as long as the process.
    """
    key = os.urandom(size)
    try:
        path = state_dir(config, environ, base_dir) / _SEAL_KEY_NAME
        make_private(path.parent)
        # Whole or not at all, and never in place of one that is there: two nodes may start at once.
        written = path.with_name(f"{_SEAL_KEY_NAME}.{os.getpid()}")
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
            os.link(written, path)
        except FileExistsError:
            kept = path.read_bytes()
            if len(kept) == size:
                return kept
            # Not one of ours: nothing was sealed with it.
            os.replace(written, path)
        finally:
            written.unlink(missing_ok=True)
    except (OSError, InterlockError) as error:
        _log.warning(
            "the key for what callers bring back cannot be kept (%s): after a restart they must "
            "begin again",
            error,
        )
    return key


def make_private(folder: Path) -> None:
    """A folder that only this user can look into. Raises InterlockError when it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InterlockError(
            CONFIG,
            f"The folder {folder} cannot be made: {reason}. "
            "Set `state_dir` in the config, or $XDG_STATE_HOME, to a folder that this user can "
            "write to.",
        ) from None
    if not is_trusted(folder):
        raise InterlockError(
            CONFIG,
            f"The folder {folder} belongs to another user, or others can look into it. "
            "Remove it, or set `state_dir` to a shorter path.",
        )


def refuse_foreign(path: Path) -> None:
    """Raises InterlockError for a file or folder of the node that another user owns or could
    change, as ssh does with its keys: whoever writes there decides for the node. Root may."""
    try:
        status = path.stat()
        above = path.parent.stat()
    except OSError:
        # What cannot be looked at is said by whoever opens it.
        return
    user = os.getuid()
    if status.st_uid not in (0, user):
        raise InterlockError(
            CONFIG,
            f"{path} belongs to another user (uid {status.st_uid}), who could decide for this "
            f"node. Look at what is in it, then run: chown -R {user} {shlex.quote(str(path))}. "
            "Or set `state_dir` to a folder of your own.",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InterlockError(
            CONFIG,
            f"Other users can write to {path}, and so decide for this node. "
            f"Look at what is in it, then run: chmod go-w {shlex.quote(str(path))}",
        )
    # In a folder such as /tmp only owners move what is theirs.
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise InterlockError(
            CONFIG,
            f"Every user can replace {path}: its folder is open to all. "
            f"Run: chmod o-w {shlex.quote(str(path.parent))}",
        )


def check_state(folder: Path) -> None:
    """Make the state folder, and refuse one with a file that another user owns or could change.
    Raises InterlockError."""
    make_private(folder)
    refuse_foreign(folder)
    try:
        found = [Path(one.path) for one in os.scandir(folder) if one.is_file()]
    except OSError as error:
        raise InterlockError(
            CONFIG, f"The folder {folder} cannot be read: {error.strerror or error}."
        ) from None
    for path in sorted(found):
        refuse_foreign(path)


def is_trusted(folder: Path) -> bool:
    """Whether a folder of sockets is this user's own.

    Where others may make folders too, such as in /tmp, one of them could stand in our way. A
    folder that the config names is taken as it is.
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


def somebody_listens(path: Path) -> bool:
    """Whether a process answers on this socket; a file may be left over from one that does not."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
