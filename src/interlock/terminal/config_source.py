"""The config of a command: the one that is named, else the first that is found, else the demo; and
where in its file a problem is."""

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
    load_config,
    refuse_exposure,
    refuse_itself,
    refuse_weak_tokens,
)
from interlock.core.config.load import places_in
from interlock.core.config.problems import BadValue, KeyPath, format_path
from interlock.core.config.quantities import check_listen
from interlock.errors import CONFIG, InterlockError
from interlock.terminal.feature_reports import load_reports

VARIABLE: Final = "INTERLOCK_CONFIG"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The config. Default: $INTERLOCK_CONFIG, ./interlock.yaml, "
        "~/.config/interlock/interlock.yaml.",
        show_default=False,
    ),
]

ConfigWarning = tuple[KeyPath, str, str]
"""The value, what is odd about it, and what to do."""

_NOWHERE: Final = """\
there is no config: no --config, no $INTERLOCK_CONFIG, no ./interlock.yaml and no {user}
Try one of these:
  interlock up --demo                      a node with a small built-in server, to look around
  interlock import --write                 take over the servers of your MCP clients
  interlock add NAME URL-or-COMMAND ...    write a config with one server
  echo 'drivers: {{}}' > interlock.yaml      run the drivers of this folder (.drivers)"""


class ConfigSource(Struct, frozen=True):
    """Where a config comes from, and what the command line changes in it."""

    path: Path | None
    """The file; None for the demo, which is built in."""
    base_dir: Path
    """Where relative paths of the config start."""
    listen: str | None = None
    safety_only: bool = False
    """Whether it is for a node that only watches agents."""

    def load(self) -> Config:
        """The config as it is now. Raises ConfigError."""
        if self.safety_only:
            config = safety_config(Config() if self.path is None else load_config(self.path))
        else:
            config = demo_config() if self.path is None else load_config(self.path)
        if self.listen is not None:
            config = replace(config, listen=self.listen)
            refuse_exposure(config)
            refuse_itself(config, "" if self.path is None else str(self.path))
        return config

    def load_to_listen(self) -> Config:
        """The same for a node that others may reach: its tokens must be good ones."""
        config = self.load()
        refuse_weak_tokens(config, environ=os.environ, base_dir=self.base_dir)
        return config


def locate_problems(found: Iterable[ConfigWarning], source: ConfigSource) -> Iterator[Problem]:
    """Doubts as problems, with the line of the config that each is about. Raises ConfigError."""
    places = {} if source.path is None else places_in(source.path)
    for path, message, hint in found:
        # What a short form was split into has no place of its own.
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in places), ())
        line, column = places.get(known, (0, 0))
        file = "" if source.path is None else str(source.path)
        yield Problem(file, line, column, format_path(path), message, hint)


def find_config(given: Path | None) -> Path | None:
    """The config file that is meant, whether it exists or not; None when there is none."""
    if given is not None:
        return given
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return next((path for path in (Path(DEFAULT_NAME), user_config_path()) if path.is_file()), None)


def find_source(
    given: Path | None, *, demo: bool = False, listen: str | None = None
) -> ConfigSource:
    """The config to use. Raises ConfigError that says how to begin when there is none."""
    if demo:
        return ConfigSource(None, Path.cwd(), listen)
    path = find_config(given)
    if path is None:
        raise no_config_error()
    return ConfigSource(path, path.absolute().parent, listen)


def find_safety_source(given: Path | None, listen: str | None) -> ConfigSource:
    """The config of a node that only watches agents. It needs none."""
    path = find_config(given)
    folder = Path.cwd() if path is None else path.absolute().parent
    return ConfigSource(path, folder, listen, safety_only=True)


def find_source_or_none(given: Path | None) -> ConfigSource | None:
    """The config to use, or None. A node may run without one: `interlock up --demo` does."""
    path = find_config(given)
    return None if path is None else ConfigSource(path, path.absolute().parent)


def load_or_default(source: ConfigSource | None) -> tuple[Config, Path]:
    """A config and its folder, by which a running node is found. Raises ConfigError."""
    return (Config(), Path.cwd()) if source is None else (source.load(), source.base_dir)


def no_config_error() -> ConfigError:
    """There is no config, and one is needed: how to begin."""
    user = str(user_config_path())
    home = f"{Path.home()}{os.sep}"
    return ConfigError.of(_NOWHERE.format(user=user.replace(home, f"~{os.sep}", 1)))


def user_config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The config of this user, for every folder."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "interlock" / DEFAULT_NAME


def safety_config(config: Config) -> Config:
    """The same without its servers: what is left is the safety loop, which agents report to."""
    for reports in load_reports():
        found = reports.safety_config(config)
        if found is not None:
            return found
    raise ConfigError.of("this build has no safety loop", "leave --safety-only out")


def demo_config() -> Config:
    """One server: the small one that comes with Interlock."""
    demo = ServerConfig(
        command=sys.executable,
        args=["-m", "interlock.demo"],
        description="Interlock's own demo server",
    )
    return Config(servers={"demo": demo})


def read_listen_address(text: str | None) -> str | None:
    """`--listen` as host:port; a port alone is one of this machine's own."""
    if text is None:
        return None
    try:
        return check_listen(text)
    except BadValue as bad:
        raise typer.BadParameter(f"{bad.message}; {bad.hint}") from None


def write_text(path: Path, text: str) -> None:
    """Replace a file whole: a running node must never read half of it."""
    # Through a link to what it leads to, which would otherwise be replaced by a file.
    target = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InterlockError(
            CONFIG,
            f"{path} cannot be written: {error.strerror}. "
            "Name a file in a folder that you can write to with --config.",
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
