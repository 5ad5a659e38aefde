"""`interlock check`: is the config right? Starts nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, output
from interlock.terminal.feature_reports import load_reports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from interlock.core.config import Config, ConfigError, Problem, ServerConfig, TokenConfig


def check(
    config: config_source.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Check the config: every problem with its place, every reference that leads nowhere.

    Nothing is started; `interlock doctor` tries the servers themselves. Exit code 3 when the file
    is wrong, 1 when it is right but something that it refers to is missing.

    \b
    Examples:
      interlock check
      interlock check -c team.yaml --json
    """
    from interlock.cli.config_warnings import config_warnings
    from interlock.core.config import ConfigError

    source = config_source.find_source(config)
    try:
        loaded = source.load()
    except ConfigError as error:
        problems = [*error.problems, *_independent(error, source)]
        if not json:
            raise ConfigError(problems) from None
        output.print_json({"file": str(source.path), "ok": False, "problems": _data(problems)})
        raise typer.Exit(output.BAD_CONFIG) from None
    missing = list(missing_references(loaded, source))
    weak = _new(_weak(loaded, source), missing)
    checked = [one.check(loaded, source) for one in load_reports()]
    problems = [*missing, *weak, *(problem for one in checked for problem in one.problems)]
    doubtful = _new(config_warnings(loaded, source), weak)
    doubtful += [warning for one in checked for warning in one.warnings]
    if json:
        told = {"problems": _data(problems), "warnings": _data(doubtful)}
        output.print_json({"file": str(source.path), "ok": not problems, **told})
    else:
        for one in problems:
            output.print_note(str(one))
        for one in doubtful:
            output.print_note(f"Warning: {one}")
        print(summary(loaded, source))
        for found in checked:
            if found.summary:
                print(f"  {found.summary}")
    if problems:
        raise typer.Exit(output.BAD_CONFIG if weak else output.FAILED)


def _independent(error: ConfigError, source: config_source.ConfigSource) -> list[Problem]:
    """Problems of the parts of a wrong config that can be read: they do not follow from `error`.

    Warnings are left out: a part that cannot be read would cause some.
    """
    from interlock.core.config import ConfigError
    from interlock.core.config.load import peek_config

    if source.path is None or any(not one.path for one in error.problems):
        # Nothing of the file can be read.
        return []
    readable = peek_config(source.path)
    found: list[Problem] = []
    for problems in (missing_references, _weak, _feature_problems):
        try:
            found += _new(problems(readable, source), [*error.problems, *found])
        except ConfigError:
            # It follows from what is reported already.
            continue
    return found


def _new(problems: Iterable[Problem], known: list[Problem]) -> list[Problem]:
    """Without those about a value of which something is reported already."""
    paths = {one.path for one in known if one.path}
    return [one for one in problems if one.path not in paths]


def _weak(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    """Tokens with which a node that others can reach does not start."""
    from interlock.core.config.checks import weak_tokens
    from interlock.terminal.config_source import locate_problems

    yield from locate_problems(
        weak_tokens(config, environ=os.environ, base_dir=source.base_dir), source
    )


def _feature_problems(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    for reports in load_reports():
        yield from reports.check(config, source).problems


def missing_references(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    """Environment variables and files that the config refers to and that are not there."""
    from interlock.terminal.config_source import locate_problems

    found: list[tuple[tuple[str | int, ...], str, str]]
    found = [(path, *wrong) for path, text in _texts(config) for wrong in _unresolved(text, source)]
    found += [
        (path, *wrong) for path, file in _files(config) for wrong in _unreadable(file, source)
    ]
    missing = {path for path, _, _ in found}
    found += _unusable(config, source, missing)
    found += _useless(config, source, missing)
    yield from locate_problems(found, source)


def summary(config: Config, source: config_source.ConfigSource) -> str:
    """What the config says, in a few lines."""
    from interlock.terminal.assumed_effects import UNANNOTATED_TEXTS

    disabled = len(config.servers) - len(config.enabled_servers)
    count, tokens = len(config.enabled_servers), len(config.tokens)
    counts = filter(None, (one.count(config) for one in load_reports()))
    lines = [
        f"{source.path}: {format_count(count, 'server')}"
        + (f" ({disabled} more not enabled)" if disabled else "")
        + f", listening on {config.listen}{config.path}"
        + (f", {format_count(tokens, 'token')}" if tokens else "")
        + "".join(f", {count}" for count in counts)
    ]
    width = max((len(key) for key in config.servers), default=0)
    for key, server in config.enabled_servers.items():
        lines.append(f"  {key:<{width}}  {_reached_by(server)}")
    if config.enabled_servers:
        lines.append(
            f"  unannotated: {config.unannotated}. {UNANNOTATED_TEXTS[config.unannotated]}"
        )
    return "\n".join(lines)


def _reached_by(server: ServerConfig) -> str:
    import shlex

    from interlock.core.config import redact
    from interlock.core.redaction import redact_args

    if server.url is not None:
        return redact(server.url)
    return shlex.join([redact(server.command or ""), *redact_args(server.args)])


def _texts(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    from interlock.core.config.secrets import OAUTH_REFERENCES

    for index, token in enumerate(config.tokens):
        yield ("tokens", index, "token"), token.token
    for index, anchor in enumerate(config.approvals.anchors):
        if anchor.secret is not None:
            yield ("approvals", "anchors", index, "secret"), anchor.secret
    for index, asked in enumerate(config.identity.introspection):
        yield ("identity", "introspection", index, "client_id"), asked.client_id
        yield ("identity", "introspection", index, "client_secret"), asked.client_secret
    for reports in load_reports():
        yield from reports.references(config)
    for key, server in config.enabled_servers.items():
        place = ("servers", key)
        for name in ("url", "command", "cwd"):
            text = getattr(server, name)
            if text is not None:
                yield (*place, name), text
        for index, argument in enumerate(server.args):
            yield (*place, "args", index), argument
        for name in ("env", "headers"):
            for variable, text in getattr(server, name).items():
                yield (*place, name, variable), text
        for name in OAUTH_REFERENCES:
            text = getattr(server.oauth, name)
            if text is not None:
                yield (*place, "oauth", name), text


def _files(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    from interlock.core.config.secrets import TLS_FILES

    for name in TLS_FILES:
        file = None if config.tls is None else getattr(config.tls, name)
        if file is not None:
            yield ("tls", name), file
    for reports in load_reports():
        yield from reports.files(config)
    for index, anchor in enumerate(config.approvals.anchors):
        if anchor.key is not None:
            yield ("approvals", "anchors", index, "key"), anchor.key
    for index, issuer in enumerate(config.identity.issuers):
        if issuer.jwks_file is not None:
            yield ("identity", "issuers", index, "jwks_file"), issuer.jwks_file


def _unusable(
    config: Config, source: config_source.ConfigSource, missing: set[tuple[str | int, ...]]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Keys that are there and are none: a node would not start with them."""
    from interlock.errors import InterlockError
    from interlock.trust.approvals.proofs import read_anchor
    from interlock.trust.identity.keys import read_keys

    names: set[str] = set()
    for index, anchor in enumerate(config.approvals.anchors):
        path = ("approvals", "anchors", index)
        if anchor.name in names:
            yield (*path, "name"), "another anchor has this name", "give each its own name"
        names.add(anchor.name)
        if any(one[:3] == path for one in missing):
            continue
        try:
            read_anchor(anchor, environ=os.environ, base_dir=source.base_dir)
        except InterlockError as error:
            yield path, error.message.rstrip("."), ""
    for index, issuer in enumerate(config.identity.issuers):
        path = ("identity", "issuers", index)
        if issuer.jwks_file is None or (*path, "jwks_file") in missing:
            continue
        try:
            read_keys((source.base_dir / issuer.jwks_file).read_bytes())
        except (OSError, ValueError) as error:
            why = str(error)
            yield (*path, "jwks_file"), f"these are no keys: {why}", "name a file with a JWKS"


def _useless(
    config: Config, source: config_source.ConfigSource, missing: set[tuple[str | int, ...]]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Tokens that are empty or the same: no node starts with these."""
    from interlock.core.config import resolve
    from interlock.core.config.secrets import SAME_TOKEN_HINT, same_token

    first: dict[str, TokenConfig] = {}
    for index, token in enumerate(config.tokens):
        path = ("tokens", index, "token")
        if path in missing:
            continue
        secret = resolve(token.token, environ=os.environ, base_dir=source.base_dir)
        if not secret:
            yield path, "the token is empty", "put the secret into the variable or file it names"
            continue
        other = first.setdefault(secret, token)
        if other is not token:
            yield path, same_token(other.name), SAME_TOKEN_HINT


def _unreadable(file: str, source: config_source.ConfigSource) -> Iterator[tuple[str, str]]:
    from interlock.core.config.secrets import missing_file

    wrong = missing_file(file, environ=os.environ, base_dir=source.base_dir)
    if wrong is not None:
        yield wrong


def _unresolved(text: str, source: config_source.ConfigSource) -> Iterator[tuple[str, str]]:
    from interlock.core.config import ConfigError, resolve
    from interlock.core.config.secrets import references

    # One at a time: each that is missing is told.
    for reference in references(text):
        try:
            resolve(str(reference), environ=os.environ, base_dir=source.base_dir)
        except ConfigError as error:
            yield error.problems[0].message, error.problems[0].hint


def _data(problems: list[Problem]) -> list[dict[str, Any]]:
    from interlock.core.config.problems import problem_as_data

    return [problem_as_data(one) for one in problems]
