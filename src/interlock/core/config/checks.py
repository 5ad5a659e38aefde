"""What must hold between fields, servers and the node as a whole.

Runs after reading, on whatever could be read: a typo in one server does not hide what is wrong
with another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.core.config import quantities
from interlock.core.config.feature_sections import section_definitions
from interlock.core.config.identity_checks import check_identity, is_own_name
from interlock.core.config.model import COMMAND_TRANSPORTS, URL_TRANSPORTS, Config, ServerConfig
from interlock.core.config.own_node import OWN_ADDRESS, is_own_url
from interlock.core.config.policy_checks import check_policy
from interlock.core.config.problems import (
    BadValue,
    ConfigError,
    KeyPath,
    Problem,
    format_path,
    one_of,
    quoted,
)
from interlock.core.config.reader import NodeReader
from interlock.core.config.secrets import resolve
from interlock.core.config.trust import IdentityConfig

TOKEN_LINE: Final = 'tokens: [{name: me, token: "${env:INTERLOCK_TOKEN}"}]'
SHORTEST_TOKEN: Final = 16
_DEFAULTS: Final = Config()


def check_document(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem between the values that were read."""
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        _check_server(reader, ("servers", key), server)
        _check_oauth(reader, ("servers", key), server)
        _check_minted(reader, ("servers", key), server)
    _check_segments(reader, servers)
    _check_transparent(reader, servers)
    _check_tokens(reader, values)
    _check_exposure(reader, values)
    _check_own_address(reader, servers, values)
    check_policy(reader, values)
    check_identity(reader, values)
    for definition in section_definitions():
        if definition.check is not None:
            definition.check(reader, values)


def exposure_refusal(config: Config) -> tuple[str, str] | None:
    """Why a node must not start with this config, and what to add; None when it may.

    For configs whose address came from elsewhere, such as the command line.
    """
    if config.tokens or _knows_callers(config.identity) or config.address.loopback:
        return None
    return _refusal(config.listen)


def refuse_exposure(config: Config, file: str = "") -> None:
    """Raise ConfigError for an address that others can reach without a token."""
    refusal = exposure_refusal(config)
    if refusal is not None:
        raise ConfigError.of(*refusal, file=file)


def refuse_weak_tokens(config: Config, *, environ: Mapping[str, str], base_dir: Path) -> None:
    """Raise ConfigError for a token that could be guessed, where others can try.

    A reference that leads nowhere is left to whoever needs the token.
    """
    weak = list(weak_tokens(config, environ=environ, base_dir=base_dir))
    if weak:
        raise ConfigError(Problem("", 0, 0, "", message, hint) for _, message, hint in weak)


def weak_tokens(
    config: Config, *, environ: Mapping[str, str], base_dir: Path
) -> Iterator[tuple[KeyPath, str, str]]:
    """Tokens that could be guessed, where others can try: path, problem, hint."""
    if config.address.loopback:
        return
    for index, token in enumerate(config.tokens):
        try:
            secret = resolve(token.token, environ=environ, base_dir=base_dir)
        except ConfigError:
            continue
        if len(secret) < SHORTEST_TOKEN:
            yield (
                ("tokens", index, "token"),
                f"the token {quoted(token.name)} has less than {SHORTEST_TOKEN} characters, and "
                f"{config.listen} can be reached from other machines",
                "make a longer one, such as with: openssl rand -hex 16",
            )


def refuse_itself(config: Config, file: str = "") -> None:
    """Raise ConfigError for a server that is the node itself, when its address came from
    elsewhere than the file."""
    for key, server in config.enabled_servers.items():
        if is_own_url(server.url or "", config.listen, config.path):
            message, hint = OWN_ADDRESS
            problem = Problem(file, 0, 0, format_path(("servers", key)), message, hint)
            raise ConfigError([problem])


def _refusal(listen: str) -> tuple[str, str]:
    return (
        f"{listen} can be reached from other machines, and no token is set",
        f"add this line: {TOKEN_LINE}",
    )


def _check_server(reader: NodeReader, path: KeyPath, server: ServerConfig) -> None:
    def given(name: str) -> bool:
        return (*path, name) in reader.places

    if given("url") and given("command"):
        reader.report(
            (*path, "command"), "a server has either url or command, not both", "remove one"
        )
    elif given("url"):
        for name in ("args", "env", "cwd"):
            if given(name):
                reader.report((*path, name), f"{name} is for a server with command", "remove it")
        if server.transport in COMMAND_TRANSPORTS:
            reader.report(
                (*path, "transport"),
                f"{server.transport} needs command",
                f"write {one_of(('auto', *URL_TRANSPORTS))}",
            )
    elif given("command"):
        for name in ("headers", "oauth"):
            if given(name):
                reader.report((*path, name), f"{name} is for a server with url", "remove it")
        if server.transport in URL_TRANSPORTS:
            reader.report(
                (*path, "transport"),
                f"{server.transport} needs url",
                f"write {one_of(('auto', *COMMAND_TRANSPORTS))}",
            )
    elif not server.url and not server.command and path not in reader.misspelt:
        reader.report(
            path, "a server needs url or command", "add url: http://host/path, or command: PROGRAM"
        )
    if server.protocol == "stateless" and server.sessions == "private":
        reader.report(
            (*path, "sessions"),
            "a server of the stateless generation has no sessions",
            "remove it, or write protocol: auto",
        )


def _check_oauth(reader: NodeReader, server_path: KeyPath, server: ServerConfig) -> None:
    path, oauth = (*server_path, "oauth"), server.oauth
    if path not in reader.places:
        return

    def given(name: str) -> bool:
        return (*path, name) in reader.places

    if any(name.lower() == "authorization" for name in server.headers):
        reader.report(
            path, "this server has an Authorization among its headers already", "remove one"
        )
    if given("client_secret") and given("private_key"):
        reader.report(
            (*path, "private_key"), "a client has either client_secret or private_key", "remove one"
        )
    for name in ("client_secret", "private_key"):
        named = given("client_id") or (name == "private_key" and given("client_metadata_url"))
        if given(name) and not named:
            reader.report((*path, name), f"{name} is nothing without client_id", "add client_id")
    proven = given("client_secret") or given("private_key")
    if oauth.grant == "client_credentials" and not proven and path not in reader.misspelt:
        reader.report(
            (*path, "grant"),
            "client_credentials needs a client that can prove itself",
            "add client_id, and client_secret or private_key",
        )
    if oauth.redirect_port > quantities.HIGHEST_PORT:
        reader.report((*path, "redirect_port"), "this is not a port", "use a number up to 65535")
    if oauth.client_metadata_url and not quantities.is_client_document(oauth.client_metadata_url):
        reader.report(
            (*path, "client_metadata_url"),
            "a client id metadata document has an https URL with a path",
            "write one such as https://example.com/interlock.json",
        )
    if oauth.issuer and not quantities.is_confidential(oauth.issuer):
        reader.report(
            (*path, "issuer"), "secrets go there, and this is not https", "write an https URL"
        )


def _check_minted(reader: NodeReader, path: KeyPath, server: ServerConfig) -> None:
    where = (*path, "minted_tokens")
    if not server.minted_tokens:
        return
    if (*path, "command") in reader.places:
        reader.report(where, "minted_tokens is for a server with url", "remove it")
    elif server.transport == "sse":
        reader.report(where, "tokens cannot be sent over sse", "write transport: http")
    if any(name.lower() == "authorization" for name in server.headers):
        reader.report(
            where, "this server has an Authorization among its headers already", "remove one"
        )
    if (*path, "oauth") in reader.places and server.oauth.enabled:
        reader.report(where, "the node signs in to this server already (oauth)", "remove one")
    if server.url and not quantities.is_confidential(server.url):
        reader.report(where, "tokens go there, and this is not https", "write an https URL")


def _check_segments(reader: NodeReader, servers: dict[str, ServerConfig]) -> None:
    taken: dict[str, str] = {}
    for key, server in servers.items():
        path: KeyPath = ("servers", key)
        own = (*path, "segment")
        segment = server.segment or quantities.default_segment(key)
        where = own if own in reader.places else path
        if not segment:
            if own not in reader.places:
                reader.report(
                    path,
                    "no segment can be made from this key",
                    "add segment: NAME, of a-z, 0-9, _ and -",
                )
            continue
        if segment in taken:
            reader.report(
                where,
                f"the segment {quoted(segment)} is already that of the server "
                f"{quoted(taken[segment])}",
                "add segment: with another name",
            )
            continue
        taken[segment] = key


def _check_transparent(reader: NodeReader, servers: dict[str, ServerConfig]) -> None:
    enabled = [key for key, server in servers.items() if server.enabled]
    for key in enabled:
        if servers[key].expose == "transparent" and len(enabled) > 1:
            others = len(enabled) - 1
            reader.report(
                ("servers", key, "expose"),
                f"transparent is for a single server, and {others} more "
                f"{'is' if others == 1 else 'are'} enabled",
                "write expose: prefixed, or enabled: false for the others",
            )


def _check_tokens(reader: NodeReader, values: dict[str, Any]) -> None:
    seen: set[str] = set()
    for index, token in enumerate(values.get("tokens", [])):
        if token.name in seen:
            reader.report(
                ("tokens", index, "name"),
                f"another token is called {quoted(token.name)}",
                "give each its own name",
            )
        if is_own_name(token.name):
            reader.report(
                ("tokens", index, "name"),
                f"{quoted(token.name)} is what the node itself calls somebody",
                "choose another name",
            )
        if not token.may:
            reader.report(
                ("tokens", index, "may"),
                "a token that may do nothing is of no use",
                "write [call], [register] or both",
            )
        seen.add(token.name)


def _knows_callers(identity: IdentityConfig) -> bool:
    """Whether callers from elsewhere can say who they are without a token of the config."""
    return bool(identity.issuers or identity.introspection or identity.certificates)


def _check_exposure(reader: NodeReader, values: dict[str, Any]) -> None:
    listen = values.get("listen")
    # Tokens that were given and could not be read have a problem of their own.
    has_tokens = values.get("tokens") or ("tokens" not in values and ("tokens",) in reader.places)
    identity = values.get("identity")
    has_identity = _knows_callers(identity) if identity else ("identity",) in reader.places
    if listen is None or has_tokens or has_identity:
        return
    try:
        loopback = quantities.parse_listen(listen).loopback
    except BadValue:
        return
    if not loopback:
        reader.report(("listen",), *_refusal(listen))


def _check_own_address(
    reader: NodeReader, servers: dict[str, ServerConfig], values: dict[str, Any]
) -> None:
    node = {name: values.get(name, getattr(_DEFAULTS, name)) for name in ("listen", "path")}
    for key, server in servers.items():
        if server.enabled and is_own_url(server.url or "", **node):
            long_form = ("servers", key, "url")
            where = long_form if long_form in reader.places else long_form[:2]
            reader.report(where, *OWN_ADDRESS)
