"""The config of a command: the file that the user names, else the first default file that exists,
else the demo. Also the line and column of a problem in that file."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct
from msgspec.structs import replace

from interlock.core.config import (
    DEFAULT_NAME,
    Config,
    ConfigError,
    Problem,
    ServerConfig,
    check_exposure,
    check_not_self,
    check_token_strength,
    load_config,
)
from interlock.core.config.load import places_in
from interlock.core.config.problems import InvalidValueError, KeyPath, format_path
from interlock.core.config.quantities import check_listen
from interlock.errors import CONFIG, InterlockError
from interlock.terminal.feature_reports import load_reports

CONFIG_VARIABLE: Final = "INTERLOCK_CONFIG"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Use this config file. Default: $INTERLOCK_CONFIG, else ./interlock.yaml, else "
        "~/.config/interlock/interlock.yaml.",
        show_default=False,
    ),
]

ConfigWarning = tuple[KeyPath, str, str]
"""The path of a config value, what is suspicious about it, and what to do."""

_NO_CONFIG_TEXT: Final = """\
No config file: no --config, no $INTERLOCK_CONFIG, no ./interlock.yaml and no {user}
Run one of these commands:
  interlock up --demo                      start a node with a small demo server
  interlock import --write                 import the servers of your MCP clients
  interlock add NAME URL-or-COMMAND ...    create a config with one server
  echo 'drivers: {{}}' > interlock.yaml      run the drivers of this folder (.drivers)"""


class ConfigSource(Struct, frozen=True):
    """The origin of a config, and the command-line options that override it."""

    path: Path | None
    """The config file. None: the built-in demo."""
    base_dir: Path
    """The folder that relative paths of the config refer to."""
    listen: str | None = None
    safety_only: bool = False
    """True for a node that runs only the safety loop (`up --safety-only`)."""

    def load(self) -> Config:
        """Read the config. Raises ConfigError."""
        if self.safety_only:
            config = safety_config(Config() if self.path is None else load_config(self.path))
        else:
            config = demo_config() if self.path is None else load_config(self.path)
        if self.listen is not None:
            config = replace(config, listen=self.listen)
            check_exposure(config)
            check_not_self(config, "" if self.path is None else str(self.path))
        return config

    def load_to_listen(self) -> Config:
        """Read the config of a node that listens, and reject weak tokens. Raises ConfigError."""
        config = self.load()
        check_token_strength(config, environ=os.environ, base_dir=self.base_dir)
        return config


def locate_problems(warnings: Iterable[ConfigWarning], source: ConfigSource) -> Iterator[Problem]:
    """Convert warnings to problems with a file, a line and a column. Raises ConfigError."""
    places = {} if source.path is None else places_in(source.path)
    for path, message, hint in warnings:
        # A value that was expanded from a short form has no position of its own.
        known_path = next(
            (path[:end] for end in range(len(path), 0, -1) if path[:end] in places), ()
        )
        line, column = places.get(known_path, (0, 0))
        file = "" if source.path is None else str(source.path)
        yield Problem(file, line, column, format_path(path), message, hint)


def find_config(config_path: Path | None) -> Path | None:
    """Return the path of the config file, or None if there is none.

    A path that the user names is returned even if the file does not exist.
    """
    if config_path is not None:
        return config_path
    variable_path = os.environ.get(CONFIG_VARIABLE)
    if variable_path:
        return Path(variable_path)
    return next((path for path in (Path(DEFAULT_NAME), user_config_path()) if path.is_file()), None)


def find_source(
    config_path: Path | None, *, demo: bool = False, listen: str | None = None
) -> ConfigSource:
    """Return the config source of a command.

    Raises ConfigError, with instructions for beginners, if there is no config file.
    """
    if demo:
        return ConfigSource(None, Path.cwd(), listen)
    path = find_config(config_path)
    if path is None:
        raise no_config_error()
    return ConfigSource(path, path.absolute().parent, listen)


def find_safety_source(config_path: Path | None, listen: str | None) -> ConfigSource:
    """Return the config source for `up --safety-only`, which works without a config file."""
    path = find_config(config_path)
    folder = Path.cwd() if path is None else path.absolute().parent
    return ConfigSource(path, folder, listen, safety_only=True)


def find_source_or_none(config_path: Path | None) -> ConfigSource | None:
    """Return the config source, or None. A node can run without a config file:
    `interlock up --demo` does."""
    path = find_config(config_path)
    return None if path is None else ConfigSource(path, path.absolute().parent)


def load_or_default(source: ConfigSource | None) -> tuple[Config, Path]:
    """Return the config and its folder, which identify a running node. Raises ConfigError."""
    return (Config(), Path.cwd()) if source is None else (source.load(), source.base_dir)


def no_config_error() -> ConfigError:
    """Create the error for a missing config file, with instructions for beginners."""
    user_path = str(user_config_path())
    home = f"{Path.home()}{os.sep}"
    return ConfigError.of(_NO_CONFIG_TEXT.format(user=user_path.replace(home, f"~{os.sep}", 1)))


def user_config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's config file, which applies to every folder."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "interlock" / DEFAULT_NAME


def safety_config(config: Config) -> Config:
    """Reduce a config to the safety loop, without servers. Raises ConfigError."""
    for reports in load_reports():
        safety = reports.safety_config(config)
        if safety is not None:
            return safety
    raise ConfigError.of("this build has no safety loop", "remove --safety-only")


def demo_config() -> Config:
    """Return a config with the small server that is part of Interlock."""
    demo = ServerConfig(
        command=sys.executable,
        args=["-m", "interlock.demo"],
        description="Interlock's own demo server",
    )
    return Config(servers={"demo": demo})


def read_listen_address(text: str | None) -> str | None:
    """Return `--listen` as host:port. A port without a host is a port of the local machine."""
    if text is None:
        return None
    try:
        return check_listen(text)
    except InvalidValueError as bad:
        raise typer.BadParameter(f"{bad.message}; {bad.hint}") from None


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, so that a running node never reads half of it."""
    # Resolve symbolic links. Otherwise the file would replace the link.
    target = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InterlockError(
            CONFIG,
            f"Cannot write {path}: {error.strerror}. "
            "Choose a file in a folder that you can write to: --config FILE",
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
