"""`interlock check`: check the config file, without starting anything."""

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
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Check the config file. Shows every error with its line, and every missing reference.

    Nothing is started. To test the servers, use `interlock doctor`. Exit code 3: the file has
    errors. Exit code 1: the file is valid, but a variable or file that it refers to is missing.

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
        problems = [*error.problems, *_independent_problems(error, source)]
        if not json:
            raise ConfigError(problems) from None
        output.print_json(
            {"file": str(source.path), "ok": False, "problems": _problems_as_data(problems)}
        )
        raise typer.Exit(output.BAD_CONFIG) from None
    missing = list(missing_references(loaded, source))
    weak = _drop_reported(_weak_token_problems(loaded, source), missing)
    reports_of_features = [reports.check(loaded, source) for reports in load_reports()]
    problems = [
        *missing,
        *weak,
        *(problem for report in reports_of_features for problem in report.problems),
    ]
    warnings = _drop_reported(config_warnings(loaded, source), weak)
    warnings += [warning for report in reports_of_features for warning in report.warnings]
    if json:
        report_data = {
            "problems": _problems_as_data(problems),
            "warnings": _problems_as_data(warnings),
        }
        output.print_json({"file": str(source.path), "ok": not problems, **report_data})
    else:
        for problem in problems:
            output.print_note(str(problem))
        for warning in warnings:
            output.print_note(f"Warning: {warning}")
        print(format_summary(loaded, source))
        for report in reports_of_features:
            if report.summary:
                print(f"  {report.summary}")
    if problems:
        raise typer.Exit(output.BAD_CONFIG if weak else output.FAILED)


def _independent_problems(error: ConfigError, source: config_source.ConfigSource) -> list[Problem]:
    """Find problems in the readable parts of an invalid config that `error` does not cause.

    Warnings are omitted, because an unreadable part would cause false ones.
    """
    from interlock.core.config import ConfigError
    from interlock.core.config.load import peek_config

    if source.path is None or any(not problem.path for problem in error.problems):
        # No part of the file is readable.
        return []
    readable = peek_config(source.path)
    independent: list[Problem] = []
    for problems in (missing_references, _weak_token_problems, _feature_problems):
        try:
            independent += _drop_reported(
                problems(readable, source), [*error.problems, *independent]
            )
        except ConfigError:
            # The error is a consequence of a reported problem.
            continue
    return independent


def _drop_reported(problems: Iterable[Problem], reported: list[Problem]) -> list[Problem]:
    """Drop problems of values that have a reported problem."""
    paths = {problem.path for problem in reported if problem.path}
    return [problem for problem in problems if problem.path not in paths]


def _weak_token_problems(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    """Yield weak tokens, with which a node that other machines can reach does not start."""
    from interlock.core.config.checks import find_weak_tokens
    from interlock.terminal.config_source import locate_problems

    yield from locate_problems(
        find_weak_tokens(config, environ=os.environ, base_dir=source.base_dir), source
    )


def _feature_problems(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    for reports in load_reports():
        yield from reports.check(config, source).problems


def missing_references(config: Config, source: config_source.ConfigSource) -> Iterator[Problem]:
    """Yield the environment variables and files that the config refers to and that are missing."""
    from interlock.terminal.config_source import locate_problems

    warnings: list[tuple[tuple[str | int, ...], str, str]]
    warnings = [
        (path, *message_and_hint)
        for path, text in _values_with_references(config)
        for message_and_hint in _check_references(text, source)
    ]
    warnings += [
        (path, *message_and_hint)
        for path, file in _referenced_files(config)
        for message_and_hint in _check_file(file, source)
    ]
    missing = {path for path, _, _ in warnings}
    warnings += _unusable_keys(config, source, missing)
    warnings += _useless_tokens(config, source, missing)
    yield from locate_problems(warnings, source)


def format_summary(config: Config, source: config_source.ConfigSource) -> str:
    """Summarize the config in a few lines."""
    from interlock.terminal.assumed_effects import UNANNOTATED_TEXTS

    disabled = len(config.servers) - len(config.enabled_servers)
    count, tokens = len(config.enabled_servers), len(config.tokens)
    counts = filter(None, (reports.count(config) for reports in load_reports()))
    lines = [
        f"{source.path}: {format_count(count, 'server')}"
        + (f" ({disabled} more not enabled)" if disabled else "")
        + f", listening on {config.listen}{config.path}"
        + (f", {format_count(tokens, 'token')}" if tokens else "")
        + "".join(f", {count}" for count in counts)
    ]
    width = max((len(key) for key in config.servers), default=0)
    for key, server in config.enabled_servers.items():
        lines.append(f"  {key:<{width}}  {_format_address(server)}")
    if config.enabled_servers:
        lines.append(
            f"  unannotated: {config.unannotated}. {UNANNOTATED_TEXTS[config.unannotated]}"
        )
    return "\n".join(lines)


def _format_address(server: ServerConfig) -> str:
    import shlex

    from interlock.core.config import redact
    from interlock.core.redaction import redact_args

    if server.url is not None:
        return redact(server.url)
    return shlex.join([redact(server.command or ""), *redact_args(server.args)])


def _values_with_references(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    from interlock.core.config.secrets import OAUTH_REFERENCES

    for index, token in enumerate(config.tokens):
        yield ("tokens", index, "token"), token.token
    for index, anchor in enumerate(config.approvals.anchors):
        if anchor.secret is not None:
            yield ("approvals", "anchors", index, "secret"), anchor.secret
    for index, endpoint in enumerate(config.identity.introspection):
        yield ("identity", "introspection", index, "client_id"), endpoint.client_id
        yield ("identity", "introspection", index, "client_secret"), endpoint.client_secret
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


def _referenced_files(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
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


def _unusable_keys(
    config: Config, source: config_source.ConfigSource, missing: set[tuple[str | int, ...]]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield invalid keys, with which a node would not start."""
    from interlock.errors import InterlockError
    from interlock.trust.approvals.proofs import read_anchor
    from interlock.trust.identity.keys import read_keys

    names: set[str] = set()
    for index, anchor in enumerate(config.approvals.anchors):
        path = ("approvals", "anchors", index)
        if anchor.name in names:
            yield (*path, "name"), "another anchor has this name", "give each anchor its own name"
        names.add(anchor.name)
        if any(missing_path[:3] == path for missing_path in missing):
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
            reason = str(error)
            yield (*path, "jwks_file"), f"not a valid JWKS: {reason}", "name a file with a JWKS"


def _useless_tokens(
    config: Config, source: config_source.ConfigSource, missing: set[tuple[str | int, ...]]
) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield empty and duplicate tokens, with which no node starts."""
    from interlock.core.config import resolve
    from interlock.core.config.secrets import SAME_TOKEN_HINT, same_token

    tokens_by_secret: dict[str, TokenConfig] = {}
    for index, token in enumerate(config.tokens):
        path = ("tokens", index, "token")
        if path in missing:
            continue
        secret = resolve(token.token, environ=os.environ, base_dir=source.base_dir)
        if not secret:
            yield path, "the token is empty", "put the secret into the variable or file it names"
            continue
        first_token = tokens_by_secret.setdefault(secret, token)
        if first_token is not token:
            yield path, same_token(first_token.name), SAME_TOKEN_HINT


def _check_file(file: str, source: config_source.ConfigSource) -> Iterator[tuple[str, str]]:
    from interlock.core.config.secrets import missing_file

    message_and_hint = missing_file(file, environ=os.environ, base_dir=source.base_dir)
    if message_and_hint is not None:
        yield message_and_hint


def _check_references(text: str, source: config_source.ConfigSource) -> Iterator[tuple[str, str]]:
    from interlock.core.config import ConfigError, resolve
    from interlock.core.config.secrets import references

    # Resolve one reference at a time, so that every missing one is reported.
    for reference in references(text):
        try:
            resolve(str(reference), environ=os.environ, base_dir=source.base_dir)
        except ConfigError as error:
            yield error.problems[0].message, error.problems[0].hint


def _problems_as_data(problems: list[Problem]) -> list[dict[str, Any]]:
    from interlock.core.config.problems import problem_as_data

    return [problem_as_data(problem) for problem in problems]
