"""Warnings about a valid config: values that have no effect, or probably a wrong one.

`interlock check` prints them. A node logs them when it starts and after every config change.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.core.config import Config, ConfigError, Problem, resolve
from interlock.core.config.checks import MIN_TOKEN_LENGTH
from interlock.terminal.config_source import ConfigSource, ConfigWarning, locate_problems
from interlock.terminal.feature_reports import collect_other_servers, load_reports

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Offering

_SIMILARITY_CUTOFF: Final = 0.75


def config_warnings(config: Config, source: ConfigSource) -> Iterator[Problem]:
    """Yield warnings about rules without a server, weak tokens, and the sections of features.

    A rule can be about a server that registers later. If servers can register, a rule is reported
    only if its name is similar to that of a known server. Raises ConfigError for a missing file.
    """
    warnings = [*_weak_tokens(config, source), *_private_anchor_keys(config, source)]
    for reports in load_reports():
        warnings += reports.config_warnings(config, source)
    warnings += _rules_without_server(config)
    yield from locate_problems(warnings, source)


def collect_config_warnings(config: Config, source: ConfigSource) -> list[Problem]:
    """Return the warnings for a running node. If the file just changed, return none: the next
    reload reports them."""
    try:
        return list(config_warnings(config, source))
    except ConfigError:
        return []


def collect_tool_warnings(
    config: Config, source: ConfigSource, offerings: Iterable[Offering]
) -> list[Problem]:
    """Return warnings about tool names in the config that match no tool of their server.

    Args:
        offerings: the tools that the servers listed.
    """
    from interlock.cli.tool_names import find_unmatched_names, list_known_tools

    warnings = find_unmatched_names(
        config, ((offering.upstream, list_known_tools(offering)) for offering in offerings)
    )
    try:
        return list(locate_problems(warnings, source)) if warnings else []
    except ConfigError:
        return []


def _weak_tokens(config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
    """Yield tokens that local users could guess, or that some clients cannot send.

    A node that other machines can reach does not even start with a short token.
    """
    for index, token in enumerate(config.tokens):
        try:
            secret = resolve(token.token, environ=os.environ, base_dir=source.base_dir)
        except ConfigError:
            # `missing_references` reports it.
            continue
        path = ("tokens", index, "token")
        if not secret:
            continue
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            message = "the token has a space, or a character that some clients cannot send"
            yield path, message, "create another token: openssl rand -hex 24"
        elif len(secret) < MIN_TOKEN_LENGTH:
            message = f"the token has less than {MIN_TOKEN_LENGTH} characters and can be guessed"
            yield path, message, "create a longer token: openssl rand -hex 24"


def _private_anchor_keys(config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
    """Yield trust anchors whose key file has a private key. The node needs the public key only."""
    from interlock.trust.approvals.proofs import is_private_key

    for index, anchor in enumerate(config.approvals.anchors):
        if anchor.key is None:
            continue
        file = source.base_dir / Path(anchor.key).expanduser()
        try:
            is_private = is_private_key(file.read_bytes())
        except OSError:
            # `missing_references` reports it.
            continue
        if is_private:
            yield (
                ("approvals", "anchors", index, "key"),
                "this is a private key, and readers of the file can approve calls",
                f"use the file with the public key, such as {Path(anchor.key).with_suffix('.pub')}",
            )


def _rules_without_server(config: Config) -> Iterator[ConfigWarning]:
    other_servers = collect_other_servers(config)
    servers = (*config.servers.values(), *other_servers.servers.values())
    segments = {*(server.segment for server in servers), *other_servers.names}
    if any(server.expose == "transparent" for server in config.enabled_servers.values()):
        return
    for number, rule in enumerate(config.policy.rules):
        for index, glob in enumerate(rule.tools):
            segment, _ = split_glob(glob, config.root_segment)
            if not segment or segment in segments:
                continue
            similar = difflib.get_close_matches(segment, segments, n=1, cutoff=_SIMILARITY_CUTOFF)
            if not similar and other_servers.unknown:
                continue
            hint = f'did you mean "{similar[0]}"?' if similar else "correct it, or remove it"
            path = ("policy", "rules", number, "tools", index)
            yield path, f"no server has the segment {segment}", hint


def split_glob(glob: str, root: str | None) -> tuple[str, str]:
    """Split a glob into the segment of a server and the rest. Empty: it can match any server."""
    remaining = glob
    if root is not None:
        if not glob.startswith(f"{root}."):
            return "", ""
        remaining = glob.removeprefix(f"{root}.")
    segment, dot, leaf = remaining.partition(".")
    return (segment, leaf) if dot and not any(char in segment for char in "*?[") else ("", "")
