"""What is right in a config and does nothing, or not what was meant. `interlock check` tells it,
and so does a node when it starts and whenever its config changes."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from interlock.core.config import Config, ConfigError, Problem, resolve
from interlock.core.config.checks import SHORTEST_TOKEN
from interlock.core.config.load import places_in
from interlock.core.config.problems import format_path
from interlock.errors import InterlockError
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.tool_table import participants_as_servers
from interlock.topics.commands.checks import Doubt, topic_doubts
from interlock.trust.identity.api_tokens import AccessToken

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Offering

_CLOSE: Final = 0.75


def doubts(config: Config, source: ConfigSource) -> Iterator[Problem]:
    """Rules about tools of servers that are not there, trust in such servers, tokens that could be
    guessed, and what is odd about topics. Raises ConfigError for a file that is gone.

    A rule may be about whoever registers later, so a name that looks like none of the servers'
    is doubted only where nobody can register.
    """
    found = [*_weak_tokens(config, source), *_trusted_strangers(config)]
    found += topic_doubts(config, made=_made(config, source))
    found += _rules_about_nobody(config)
    yield from placed(found, source)


def doubts_now(config: Config, source: ConfigSource) -> list[Problem]:
    """The same for a node under way. A file that changed meanwhile has them next time."""
    try:
        return list(doubts(config, source))
    except ConfigError:
        return []


def tool_doubts_now(
    config: Config, source: ConfigSource, offerings: Iterable[Offering]
) -> list[Problem]:
    """Names of tools in the config that match no tool of their server, once the tools are known."""
    from interlock.cli.tool_names import tools_of, unmatched_names

    found = unmatched_names(config, ((one.upstream, tools_of(one)) for one in offerings))
    try:
        return list(placed(found, source)) if found else []
    except ConfigError:
        return []


def placed(found: Iterable[Doubt], source: ConfigSource) -> Iterator[Problem]:
    """With the line of the file that each is about. Raises ConfigError."""
    places = {} if source.path is None else places_in(source.path)
    for path, message, hint in found:
        # What a short form was split into has no place of its own.
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in places), ())
        line, column = places.get(known, (0, 0))
        file = "" if source.path is None else str(source.path)
        yield Problem(file, line, column, format_path(path), message, hint)


def _weak_tokens(config: Config, source: ConfigSource) -> Iterator[Doubt]:
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


def _made(config: Config, source: ConfigSource) -> list[AccessToken]:
    """Tokens of `interlock token` that are good."""
    from interlock.core.paths import access_path
    from interlock.trust.identity.token_store import AccessStore

    path = access_path(config, os.environ, source.base_dir)
    if not path.exists():
        return []
    try:
        now = time.time()
        return [one for one in AccessStore(path).tokens() if one.state(now) == "good"]
    except (InterlockError, OSError):
        # Whoever needs the file says what is wrong with it.
        return []


def _rules_about_nobody(config: Config) -> Iterator[Doubt]:
    known = {*(server.segment for server in config.servers.values()), *config.subservers.links}
    known |= {server.segment for server in participants_as_servers(config).values()}
    if any(server.expose == "transparent" for server in config.enabled_servers.values()):
        return
    for number, rule in enumerate(config.policy.rules):
        for index, glob in enumerate(rule.tools):
            first, _ = split_glob(glob, config.root_segment)
            if not first or first in known:
                continue
            close = difflib.get_close_matches(first, known, n=1, cutoff=_CLOSE)
            if not close and config.subservers.enabled:
                continue
            hint = f'did you mean "{close[0]}"?' if close else "correct it, or remove it"
            path = ("policy", "rules", number, "tools", index)
            yield path, f"no server has the segment {first}", hint


def _trusted_strangers(config: Config) -> Iterator[Doubt]:
    """Servers that are trusted, and are not there."""
    known = {*config.servers, *config.subservers.links}
    for key in config.aql.trust:
        close = difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
        if key in known or (not close and config.subservers.enabled):
            continue
        hint = f'did you mean "{close[0]}"?' if close else "correct it, or remove it"
        yield ("aql", "trust", key), f"there is no server {key}", hint


def split_glob(glob: str, root: str | None) -> tuple[str, str]:
    """The segment of a server that a glob names, and the rest; nothing where it could be any."""
    rest = glob
    if root is not None:
        if not glob.startswith(f"{root}."):
            return "", ""
        rest = glob.removeprefix(f"{root}.")
    first, dot, leaf = rest.partition(".")
    return (first, leaf) if dot and not any(one in first for one in "*?[") else ("", "")
