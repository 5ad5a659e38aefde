"""Where the files of drivers are, and which files of the node and its user they may not touch."""

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
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME: Final = 40


def driver_states_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Who is signed in with which driver: of a user rather than of a node, as with tokens."""
    if config.state_dir is not None:
        return state_dir(config, environ, base_dir) / _DRIVER_STATES_NAME
    return state_home(environ) / _DRIVER_STATES_NAME


def installed_drivers_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """What the drivers of this workspace had installed: two workspaces may have drivers of the same
    name, and a server may keep what it knows beside itself."""
    workspace = base_dir.resolve()
    digest = blake2b(os.fsencode(workspace), digest_size=4).hexdigest()
    # Programs are started by scripts that name their folder: nothing in it is to need quotes.
    name = _NOT_PLAIN.sub("_", workspace.name)[:_LONGEST_NAME].lstrip(".")
    return _installed_root(config, environ, base_dir) / f"{name}-{digest}"


def _installed_root(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Not in the state folder: that is hidden from the servers of drivers."""
    if config.state_dir is not None:
        state = state_dir(config, environ, base_dir)
        return state.with_name(f"{state.name}-installed")
    home = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "interlock"


def hidden_from_drivers(
    config: Config, environ: Mapping[str, str], base_dir: Path
) -> tuple[Path, ...]:
    """What no server of a driver may see: the node's files, the sockets that let its user in, the
    private keys of operators, and private keys and secrets that the config names by their file. Of
    those a driver gets the value of its own in its environment, and none of the others."""
    places = {
        state_dir(config, environ, base_dir),
        state_home(environ),
        # A folder of its own, wherever it is: see `socket_path`.
        socket_path(config, environ, base_dir).parent,
        user_config(environ) / "keys",
        *_secret_files(config, base_dir),
    }
    # Files that the config puts somewhere else, with what SQLite keeps beside them.
    for path in (journal_path(config, environ, base_dir), *_private_files(config, base_dir)):
        beside = (path.with_name(path.name + end) for end in ("", "-wal", "-shm"))
        places |= {sibling for sibling in beside if sibling.is_file()}
    return tuple(sorted(places))


def _secret_files(config: Config, base_dir: Path) -> Iterator[Path]:
    """Private keys, and files behind `${file:}`, that are there."""
    named = list(_paths(to_builtins(config), whole=False))
    if config.tls is not None:
        named.append(os.path.expanduser(config.tls.key))
    for name in named:
        path = base_dir / name
        if os.path.isfile(path):
            # A link cannot be covered: what it leads to is.
            yield Path(os.path.realpath(path))


def _private_files(config: Config, base_dir: Path) -> Iterator[Path]:
    """Those that sections of features name, whether they are there or not."""
    for section in config.sections:
        for name in section.private_files():
            yield Path(os.path.realpath(base_dir / os.path.expanduser(name)))


def guarded_from_drivers(
    config: Config, environ: Mapping[str, str], base_dir: Path
) -> tuple[Path, ...]:
    """What no server of a driver may change: whatever says what drivers may do, and the programs of
    other drivers."""
    settings = config.section(DriversConfig)
    folders = [*settings.folders, *settings.contracts, ".secrets"]
    # Also those that are not there yet: somebody would make them.
    places = {base_dir / Path(name).expanduser() for name in folders}
    registry = registry_path(config, base_dir)
    if registry is not None:
        places.add(registry)
    # Of other workspaces, too.
    places.add(_installed_root(config, environ, base_dir))
    places |= {path for path in (user_config(environ),) if path.is_dir()}
    places |= {path for path in base_dir.glob("*.y*ml") if path.is_file()}
    places |= _named_files(config, environ, base_dir)
    # What Git would run, outside, for whoever works here next; its data stay a driver's to write.
    git = base_dir / ".git"
    if git.is_dir():
        places |= {git / "hooks", *(path for path in (git / "config",) if path.is_file())}
    return tuple(sorted(places))


def _named_files(config: Config, environ: Mapping[str, str], base_dir: Path) -> set[Path]:
    """Every file that a config names: keys, certificates, secrets, programs and their scripts.

    Any text of it may be such a name. To read one too many as a file costs a driver that it cannot
    write it; to forget one would let it decide who is believed.
    """
    found = {base_dir / name for name in _paths(to_builtins(config))}
    for server in config.servers.values():
        # A program finds its scripts from where it is started.
        folder = base_dir / os.path.expanduser(server.cwd or "")
        found |= {folder / name for name in _paths([server.command, server.args])}
    places: set[Path] = set()
    for path in found:
        if os.path.isfile(path):
            # A link cannot be covered: what it leads to is, and the folder that it stands in.
            places.add(Path(os.path.realpath(path)))
            if path.is_symlink() and path.parent.resolve() != base_dir.resolve():
                places.add(path.parent)
    return places


def _paths(value: object, *, whole: bool = True) -> Iterator[str]:
    """What a part of a config could mean as paths. Without `whole`: only `${file:path}` does."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _paths(item, whole=whole)
    elif isinstance(value, str):
        # `${file:path}`, and options such as --config=path, hold one.
        texts = (value, value.partition("=")[2]) if whole else ()
        for text in (*texts, *_FILE_REFERENCE.findall(value)):
            if text:
                yield os.path.expanduser(text)
