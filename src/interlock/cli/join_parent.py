"""The node that `interlock join` is given, held to the same rules as one in a config. Whatever is
wrong is told by the option that it came from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import typer

from interlock.config import ConfigError, ParentConfig, parse_config, resolve_parent
from interlock.config.problems import BadValue
from interlock.config.quantities import VARIABLE_PATTERN, parse_duration

_FILES: Final = ("ca", "certificate", "key", "authority_key")
_NEEDS: Final = {"certificate": "key", "key": "certificate", "authority_key": "authority"}


def parent_of(
    url: str,
    *,
    segment: str,
    backup: list[str],
    token_env: str | None,
    authority: str | None,
    heartbeat: str,
    files: Mapping[str, Path | None],
) -> ParentConfig:
    """With references, none of which leads nowhere. Raises BadParameter or ConfigError."""
    given: dict[str, str | float | list[str] | None] = {
        "segment": segment,
        "backup": backup,
        "authority": authority,
        "heartbeat": _seconds(heartbeat),
    }
    given |= {field: None if file is None else str(file) for field, file in files.items()}
    for field, needed in _NEEDS.items():
        if given.get(field) is not None and given.get(needed) is None:
            raise typer.BadParameter(
                f"{_option(field)} is nothing without {_option(needed)}: give that too."
            )
    if token_env is not None:
        given["token"] = _variable(token_env)
    for field in _FILES:
        if given.get(field) is not None:
            _check_readable(_option(field), str(given[field]))
    if given.get("authority_key") is not None:
        given["authority_key"] = f"${{file:{given['authority_key']}}}"
    parent = _checked(url, given)
    origins = {field: _option(field) for field in (*_FILES, "authority", "heartbeat")}
    origins["token"] = f"--token-env: the environment variable {token_env}"
    # Not before: what signs proofs is slow to import.
    from interlock.faces.ax.presented import check_presented

    check_presented(resolve_parent(parent, environ=os.environ, base_dir=Path.cwd()), origins)
    return parent


def _checked(url: str, given: Mapping[str, object]) -> ParentConfig:
    settings = {name: value for name, value in given.items() if value not in (None, [])}
    # It listens nowhere, so no parent can be itself.
    document = {"listen": "127.0.0.1:0", "parent": {"url": url, **settings}}
    try:
        parent = parse_config(msgspec.json.encode(document).decode()).parent
    except ConfigError as error:
        first = error.problems[0]
        where = first.path.removeprefix("parent.").partition("[")[0]
        raise typer.BadParameter(f"{_option(where)}: {first.message}; {first.hint}.") from None
    assert parent is not None
    return parent


def _option(field: str) -> str:
    return "PARENT" if field == "url" else f"--{field.replace('_', '-')}"


def _variable(name: str) -> str:
    if not re.fullmatch(VARIABLE_PATTERN, name):
        # Not shown: somebody may have put the token itself there.
        raise typer.BadParameter("--token-env wants the name of an environment variable.")
    if name not in os.environ:
        raise ConfigError.of(
            f"--token-env: the environment variable {name} is not set",
            f"set the environment variable {name} to the token",
        )
    return f"${{env:{name}}}"


def _check_readable(option: str, path: str) -> None:
    try:
        with Path(path).expanduser().open("rb"):
            return
    except FileNotFoundError:
        raise ConfigError.of(
            f"{option}: the file {path} does not exist", "correct the path"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError.of(
            f"{option}: the file {path} cannot be read ({reason})", "make it readable for this user"
        ) from None


def _seconds(text: str) -> float:
    try:
        return parse_duration(text if not text.isdigit() else float(text), zero=True)
    except BadValue as bad:
        raise typer.BadParameter(f"--heartbeat: {bad.message}; {bad.hint}.") from None
