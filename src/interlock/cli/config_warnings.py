"""What is right in a config and does nothing, or not what was meant. `interlock check` tells it,
and so does a node when it starts and whenever its config changes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from interlock.core.config import Config, ConfigError, Problem, resolve
from interlock.core.config.checks import SHORTEST_TOKEN
from interlock.terminal.config_source import ConfigSource, ConfigWarning, locate_problems
from interlock.terminal.feature_reports import collect_other_servers, load_reports

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Offering

_CLOSE: Final = 0.75


def config_warnings(config: Config, source: ConfigSource) -> Iterator[Problem]:
    """Rules about tools of servers that are not there, tokens that could be guessed, and what is
    odd about the sections of features. Raises ConfigError for a file that is gone.

    A rule may be about whoever registers later, so a name that looks like none of the servers'
    is doubted only where nobody can register.
    """
    found = list(_weak_tokens(config, source))
    for reports in load_reports():
        found += reports.config_warnings(config, source)
    found += _rules_about_nobody(config)
    yield from locate_problems(found, source)


def collect_config_warnings(config: Config, source: ConfigSource) -> list[Problem]:
    """The same for a node under way. A file that changed meanwhile has them next time."""
    try:
        return list(config_warnings(config, source))
    except ConfigError:
        return []


def collect_tool_warnings(
    config: Config, source: ConfigSource, offerings: Iterable[Offering]
) -> list[Problem]:
    """Names of tools in the config that match no tool of their server, once the tools are known."""
    from interlock.cli.tool_names import tools_of, unmatched_names

    found = unmatched_names(config, ((one.upstream, tools_of(one)) for one in offerings))
    try:
        return list(locate_problems(found, source)) if found else []
    except ConfigError:
        return []


def _weak_tokens(config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
    """Tokens that whoever is on this machine could guess, or that clients may not be able to send.
    Where others can try, no node starts with one that is short."""
    for index, token in enumerate(config.tokens):
        try:
            secret = resolve(token.token, environ=os.environ, base_dir=source.base_dir)
        except ConfigError:
            # That it leads nowhere is told elsewhere.
            continue
        path = ("tokens", index, "token")
        if not secret:
            continue
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            what = "the token has a space, or a character that not every client can send"
            yield path, what, "make another one: openssl rand -hex 24"
        elif len(secret) < SHORTEST_TOKEN:
            what = f"the token has less than {SHORTEST_TOKEN} characters, and can be guessed"
            yield path, what, "make a longer one: openssl rand -hex 24"


def _rules_about_nobody(config: Config) -> Iterator[ConfigWarning]:
    others = collect_other_servers(config)
    servers = (*config.servers.values(), *others.servers.values())
    known = {*(server.segment for server in servers), *others.names}
    if any(server.expose == "transparent" for server in config.enabled_servers.values()):
        return
    for number, rule in enumerate(config.policy.rules):
        for index, glob in enumerate(rule.tools):
            first, _ = split_glob(glob, config.root_segment)
            if not first or first in known:
                continue
            close = difflib.get_close_matches(first, known, n=1, cutoff=_CLOSE)
            if not close and others.unknown:
                continue
            hint = f'did you mean "{close[0]}"?' if close else "correct it, or remove it"
            path = ("policy", "rules", number, "tools", index)
            yield path, f"no server has the segment {first}", hint


def split_glob(glob: str, root: str | None) -> tuple[str, str]:
    """The segment of a server that a glob names, and the rest; nothing where it could be any."""
    rest = glob
    if root is not None:
        if not glob.startswith(f"{root}."):
            return "", ""
        rest = glob.removeprefix(f"{root}.")
    first, dot, leaf = rest.partition(".")
    return (first, leaf) if dot and not any(one in first for one in "*?[") else ("", "")
