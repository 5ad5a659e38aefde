"""Paths of driver files, and the paths that drivers must not see or change."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec import to_builtins

from interlock.contracts.paths import registry_path
from interlock.core.config import Config
from interlock.core.paths import journal_path, socket_path, state_dir, state_home, user_config
from interlock.drivers.config import DriversConfig

_DRIVER_STATES_NAME: Final = "driver-states.db"
_FILE_REFERENCE: Final = re.compile(r"\$\{file:([^}]*)\}")
_SPECIAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME_CHARACTERS: Final = 40


def driver_states_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the database of driver sign-ins. Like tokens, sign-ins belong to a user,
    not to a node."""
    if config.state_dir is not None:
        return state_dir(config, environ, base_dir) / _DRIVER_STATES_NAME
    return state_home(environ) / _DRIVER_STATES_NAME


def installed_drivers_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the folder of installed drivers of a workspace. Two workspaces may have drivers with
    the same name, and a server may store data beside its program."""
    workspace = base_dir.resolve()
    digest = blake2b(os.fsencode(workspace), digest_size=4).hexdigest()
    # The path is written into the start scripts of programs, so it must not need quoting.
    name = _SPECIAL_CHARACTERS.sub("_", workspace.name)[:_MAX_NAME_CHARACTERS].lstrip(".")
    return _installed_root(config, environ, base_dir) / f"{name}-{digest}"


def _installed_root(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the parent folder of all installed drivers. It is outside of the state folder, which
    is hidden from driver servers."""
    if config.state_dir is not None:
        state = state_dir(config, environ, base_dir)
        return state.with_name(f"{state.name}-installed")
    home = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "interlock"


def hidden_from_drivers(
    config: Config, environ: Mapping[str, str], base_dir: Path
) -> tuple[Path, ...]:
    """Return the paths that driver servers cannot see.

    These are the node's files, the sockets that give access to the node, the private keys of
    operators, and private keys and secret files that the config names. A driver gets the values of
    its own secrets in its environment, never the files.
    """
    paths = {
        state_dir(config, environ, base_dir),
        state_home(environ),
        # The socket has a private folder, wherever it is: see `socket_path`.
        socket_path(config, environ, base_dir).parent,
        user_config(environ) / "keys",
        *_secret_files(config, base_dir),
    }
    # Files that the config places elsewhere, with the companion files of SQLite.
    for path in (journal_path(config, environ, base_dir), *_private_files(config, base_dir)):
        siblings = (path.with_name(path.name + end) for end in ("", "-wal", "-shm"))
        paths |= {sibling for sibling in siblings if sibling.is_file()}
    return tuple(sorted(paths))


def _secret_files(config: Config, base_dir: Path) -> Iterator[Path]:
    """Yield existing private keys and files of `${file:}` references."""
    names = list(_paths(to_builtins(config), all_texts=False))
    if config.tls is not None:
        names.append(os.path.expanduser(config.tls.key))
    for name in names:
        path = base_dir / name
        if os.path.isfile(path):
            # A link cannot be covered: what it leads to is.
            yield Path(os.path.realpath(path))


def _private_files(config: Config, base_dir: Path) -> Iterator[Path]:
    """Yield the private files that feature sections name, whether or not they exist."""
    for section in config.sections:
        for name in section.private_files():
            yield Path(os.path.realpath(base_dir / os.path.expanduser(name)))


def guarded_from_drivers(
    config: Config, environ: Mapping[str, str], base_dir: Path
) -> tuple[Path, ...]:
    """Return the paths that driver servers cannot change: files that define what drivers may do,
    and the programs of other drivers."""
    settings = config.section(DriversConfig)
    folders = [*settings.folders, *settings.contracts, ".secrets"]
    # Include missing folders: otherwise a server could create them.
    paths = {base_dir / Path(name).expanduser() for name in folders}
    registry = registry_path(config, base_dir)
    if registry is not None:
        paths.add(registry)
    # The folder holds the programs of all workspaces.
    paths.add(_installed_root(config, environ, base_dir))
    paths |= {path for path in (user_config(environ),) if path.is_dir()}
    paths |= {path for path in base_dir.glob("*.y*ml") if path.is_file()}
    paths |= _named_files(config, environ, base_dir)
    # Git runs hooks and config commands outside of the sandbox for the next user of the repository.
    # The data of Git stay writable.
    git = base_dir / ".git"
    if git.is_dir():
        paths |= {git / "hooks", *(path for path in (git / "config",) if path.is_file())}
    return tuple(sorted(paths))


def _named_files(config: Config, environ: Mapping[str, str], base_dir: Path) -> set[Path]:
    """Return every file that a config names: keys, certificates, secrets, programs and their
    scripts.

    Any text of the config can be a path. If a text is wrongly taken for a path, a driver cannot
    write that file. If a path were missed, a driver could replace a file that decides whom the node
    trusts.
    """
    candidates = {base_dir / name for name in _paths(to_builtins(config))}
    for server in config.servers.values():
        # Relative paths of scripts start at the program's working folder.
        folder = base_dir / os.path.expanduser(server.cwd or "")
        candidates |= {folder / name for name in _paths([server.command, server.args])}
    paths: set[Path] = set()
    for path in candidates:
        if os.path.isfile(path):
            # The launcher cannot cover a link: cover its target and the folder that contains the
            # link.
            paths.add(Path(os.path.realpath(path)))
            if path.is_symlink() and path.parent.resolve() != base_dir.resolve():
                paths.add(path.parent)
    return paths


def _paths(value: object, *, all_texts: bool = True) -> Iterator[str]:
    """Yield all texts in a part of a config that could be paths.

    Args:
        all_texts: False: only the paths of `${file:path}` references.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _paths(item, all_texts=all_texts)
    elif isinstance(value, str):
        # `${file:path}` references and options such as --config=path contain a path.
        texts = (value, value.partition("=")[2]) if all_texts else ()
        for text in (*texts, *_FILE_REFERENCE.findall(value)):
            if text:
                yield os.path.expanduser(text)
