"""Checks between fields, between servers, and of the node as a whole.

They run after reading, on all values that could be read, so that a typo in one server does not
hide a problem of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from interlock.core.config import quantities
from interlock.core.config.conditions import compile_condition
from interlock.core.config.feature_sections import section_definitions
from interlock.core.config.model import COMMAND_TRANSPORTS, URL_TRANSPORTS, Config, ServerConfig
from interlock.core.config.own_node import OWN_ADDRESS, is_own_url
from interlock.core.config.problems import (
    ConfigError,
    InvalidValueError,
    KeyPath,
    Problem,
    format_path,
    join_alternatives,
    quote,
)
from interlock.core.config.quantities import is_confidential
from interlock.core.config.reader import NodeReader
from interlock.core.config.secrets import resolve
from interlock.core.config.trust import ApprovalsConfig, IdentityConfig, PolicyConfig, RuleConfig
from interlock.protocol.kinds import REQUEST, compile_pattern, find_pattern_problem, request_kind
from interlock.protocol.mcp import TOOLS_CALL

TOKEN_LINE: Final = 'tokens: [{name: me, token: "${env:INTERLOCK_TOKEN}"}]'
MIN_TOKEN_LENGTH: Final = 16
_DEFAULTS: Final = Config()


def check_document(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report all problems between the values that were read."""
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        _check_server(reader, ("servers", key), server)
        _check_oauth(reader, ("servers", key), server)
        _check_hop_tokens(reader, ("servers", key), server)
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


def find_exposure_problem(config: Config) -> tuple[str, str] | None:
    """Return why a node must not start with this config, and what to add. None: it may start.

    For configs whose address is not from the file, but from the command line, for example.
    """
    if config.tokens or _has_identity_source(config.identity) or config.address.loopback:
        return None
    return _exposure_problem(config.listen)


def check_exposure(config: Config, file: str = "") -> None:
    """Raise ConfigError for an address that other machines can reach without a token."""
    problem = find_exposure_problem(config)
    if problem is not None:
        raise ConfigError.of(*problem, file=file)


def check_token_strength(config: Config, *, environ: Mapping[str, str], base_dir: Path) -> None:
    """Raise ConfigError for a token that other machines could guess.

    References that cannot be resolved are reported where the token is used.
    """
    problems = list(find_weak_tokens(config, environ=environ, base_dir=base_dir))
    if problems:
        raise ConfigError(Problem("", 0, 0, "", message, hint) for _, message, hint in problems)


def find_weak_tokens(
    config: Config, *, environ: Mapping[str, str], base_dir: Path
) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield tokens that other machines could guess: path, problem, hint."""
    if config.address.loopback:
        return
    for index, token in enumerate(config.tokens):
        try:
            secret = resolve(token.token, environ=environ, base_dir=base_dir)
        except ConfigError:
            continue
        if len(secret) < MIN_TOKEN_LENGTH:
            yield (
                ("tokens", index, "token"),
                f"the token {quote(token.name)} has less than {MIN_TOKEN_LENGTH} characters, and "
                f"{config.listen} is reachable from other machines",
                "use a longer one: openssl rand -hex 16",
            )


def check_not_self(config: Config, file: str = "") -> None:
    """Raise ConfigError for a server that is the node itself, with an address from elsewhere."""
    for key, server in config.enabled_servers.items():
        if is_own_url(server.url or "", config.listen, config.path):
            message, hint = OWN_ADDRESS
            problem = Problem(file, 0, 0, format_path(("servers", key)), message, hint)
            raise ConfigError([problem])


def _exposure_problem(listen: str) -> tuple[str, str]:
    return (
        f"{listen} is reachable from other machines, and there is no token",
        f"add this line: {TOKEN_LINE}",
    )


def _check_server(reader: NodeReader, path: KeyPath, server: ServerConfig) -> None:
    def is_set(name: str) -> bool:
        return (*path, name) in reader.places

    if is_set("url") and is_set("command"):
        reader.report(
            (*path, "command"), "a server has either url or command, not both", "remove one"
        )
    elif is_set("url"):
        for name in ("args", "env", "cwd"):
            if is_set(name):
                reader.report((*path, name), f"{name} is for a server with command", "remove it")
        if server.transport in COMMAND_TRANSPORTS:
            reader.report(
                (*path, "transport"),
                f"{server.transport} needs command",
                f"write {join_alternatives(('auto', *URL_TRANSPORTS))}",
            )
    elif is_set("command"):
        for name in ("headers", "oauth"):
            if is_set(name):
                reader.report((*path, name), f"{name} is for a server with url", "remove it")
        if server.transport in URL_TRANSPORTS:
            reader.report(
                (*path, "transport"),
                f"{server.transport} needs url",
                f"write {join_alternatives(('auto', *COMMAND_TRANSPORTS))}",
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

    def is_set(name: str) -> bool:
        return (*path, name) in reader.places

    if any(name.lower() == "authorization" for name in server.headers):
        reader.report(
            path, "`headers` of this server already has an Authorization header", "remove one"
        )
    if is_set("client_secret") and is_set("private_key"):
        reader.report(
            (*path, "private_key"), "a client has either client_secret or private_key", "remove one"
        )
    for name in ("client_secret", "private_key"):
        has_client = is_set("client_id") or (
            name == "private_key" and is_set("client_metadata_url")
        )
        if is_set(name) and not has_client:
            reader.report((*path, name), f"{name} needs client_id", "add client_id")
    has_secret = is_set("client_secret") or is_set("private_key")
    if oauth.grant == "client_credentials" and not has_secret and path not in reader.misspelt:
        reader.report(
            (*path, "grant"),
            "client_credentials needs a client with credentials",
            "add client_id, and client_secret or private_key",
        )
    if oauth.redirect_port > quantities.MAX_PORT:
        reader.report((*path, "redirect_port"), "this is not a port", "use a number up to 65535")
    if oauth.client_metadata_url and not quantities.is_client_document(oauth.client_metadata_url):
        reader.report(
            (*path, "client_metadata_url"),
            "the URL of a client id metadata document is https and has a path",
            "write one such as https://example.com/interlock.json",
        )
    if oauth.issuer and not quantities.is_confidential(oauth.issuer):
        reader.report(
            (*path, "issuer"),
            "secrets are sent there, so http is not allowed",
            "write an https URL",
        )


def _check_hop_tokens(reader: NodeReader, path: KeyPath, server: ServerConfig) -> None:
    path_of_key = (*path, "minted_tokens")
    if not server.minted_tokens:
        return
    if (*path, "command") in reader.places:
        reader.report(path_of_key, "minted_tokens is for a server with url", "remove it")
    elif server.transport == "sse":
        reader.report(path_of_key, "tokens cannot be sent over sse", "write transport: http")
    if any(name.lower() == "authorization" for name in server.headers):
        reader.report(
            path_of_key,
            "`headers` of this server already has an Authorization header",
            "remove one",
        )
    if (*path, "oauth") in reader.places and server.oauth.enabled:
        reader.report(path_of_key, "the node signs in to this server (oauth)", "remove one")
    if server.url and not quantities.is_confidential(server.url):
        reader.report(
            path_of_key, "tokens are sent there, so http is not allowed", "write an https URL"
        )


def _check_segments(reader: NodeReader, servers: dict[str, ServerConfig]) -> None:
    owners: dict[str, str] = {}
    for key, server in servers.items():
        path: KeyPath = ("servers", key)
        own_path = (*path, "segment")
        segment = server.segment or quantities.default_segment(key)
        reported_path = own_path if own_path in reader.places else path
        if not segment:
            if own_path not in reader.places:
                reader.report(
                    path,
                    "this key cannot be converted to a segment",
                    "add segment: NAME, of a-z, 0-9, _ and -",
                )
            continue
        if segment in owners:
            reader.report(
                reported_path,
                f"the server {quote(owners[segment])} already has the segment {quote(segment)}",
                "add segment: with another name",
            )
            continue
        owners[segment] = key


def _check_transparent(reader: NodeReader, servers: dict[str, ServerConfig]) -> None:
    enabled = [key for key, server in servers.items() if server.enabled]
    for key in enabled:
        if servers[key].expose == "transparent" and len(enabled) > 1:
            other_count = len(enabled) - 1
            reader.report(
                ("servers", key, "expose"),
                f"transparent is for a single server, and {other_count} more "
                f"{'is' if other_count == 1 else 'are'} enabled",
                "write expose: prefixed, or enabled: false for the others",
            )


def _check_tokens(reader: NodeReader, values: dict[str, Any]) -> None:
    names: set[str] = set()
    for index, token in enumerate(values.get("tokens", [])):
        if token.name in names:
            reader.report(
                ("tokens", index, "name"),
                f"another token has the name {quote(token.name)}",
                "use unique names",
            )
        if is_reserved_name(token.name):
            reader.report(
                ("tokens", index, "name"),
                f"{quote(token.name)} is reserved for the node",
                "choose another name",
            )
        if not token.may:
            reader.report(
                ("tokens", index, "may"),
                "a token without permissions is of no use",
                "write [call], [register] or both",
            )
        names.add(token.name)


def _has_identity_source(identity: IdentityConfig) -> bool:
    """Return whether remote callers can authenticate without a token of the config."""
    return bool(identity.issuers or identity.introspection or identity.certificates)


def _check_exposure(reader: NodeReader, values: dict[str, Any]) -> None:
    listen = values.get("listen")
    # Tokens that could not be read have a problem of their own.
    has_tokens = values.get("tokens") or ("tokens" not in values and ("tokens",) in reader.places)
    identity = values.get("identity")
    has_identity = _has_identity_source(identity) if identity else ("identity",) in reader.places
    if listen is None or has_tokens or has_identity:
        return
    try:
        loopback = quantities.parse_listen(listen).loopback
    except InvalidValueError:
        return
    if not loopback:
        reader.report(("listen",), *_exposure_problem(listen))


def _check_own_address(
    reader: NodeReader, servers: dict[str, ServerConfig], values: dict[str, Any]
) -> None:
    node = {name: values.get(name, getattr(_DEFAULTS, name)) for name in ("listen", "path")}
    for key, server in servers.items():
        if server.enabled and is_own_url(server.url or "", **node):
            url_path = ("servers", key, "url")
            reported_path = url_path if url_path in reader.places else url_path[:2]
            reader.report(reported_path, *OWN_ADDRESS)


# -- Rules of the policy. A rule that can never match does not protect anything.

RESERVED_RULE_PREFIX: Final = "default:"
"""The prefix of the names of default decisions, when no rule matches."""
_REQUESTS: Final = f"{REQUEST}:"
_TOOL_CALLS: Final = request_kind(TOOLS_CALL)
_METHODS: Final = ("tools/", "resources/", "prompts/")
_GLOB_CHARACTERS: Final = frozenset("*?[")
_TOOL_SELECTORS: Final = ("tools", "effects", "annotations")


def check_policy(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report all problems of the policy."""
    _check_approvers(reader, values)
    policy: PolicyConfig | None = values.get("policy")
    if policy is None:
        return
    names: set[str] = set()
    for number, rule in enumerate(policy.rules):
        path: KeyPath = ("policy", "rules", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule has the name {quote(rule.name)}",
                "use unique names",
            )
        elif rule.name.startswith(RESERVED_RULE_PREFIX):
            reader.report(
                (*path, "name"),
                f"names with {RESERVED_RULE_PREFIX} are reserved for the node",
                "choose another name",
            )
        names.add(rule.name)
        _check_kinds(reader, path, rule)
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except InvalidValueError as error:
                reader.report((*path, "when"), error.message, error.hint)
    _check_learned(reader, policy)


def _check_approvers(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report a policy that requires approvals while no operator can give them."""
    approvals: ApprovalsConfig | None = values.get("approvals")
    if approvals is None or approvals.enrolled or approvals.anchors:
        return
    has_invalid_policy = "policy" not in values and ("policy",) in reader.places
    if not has_invalid_policy and can_require_approval(values.get("policy") or PolicyConfig()):
        reader.report(
            ("approvals", "enrolled"),
            "the policy requires approvals, but no proof is accepted",
            "add an anchor under approvals.anchors, or remove this key and run "
            "`interlock keys new`",
        )


def can_require_approval(policy: PolicyConfig) -> bool:
    """Return whether a policy can require an approval for a call."""
    if any(rule.then in ("confirm", "verify") for rule in policy.rules):
        return True
    allows_all = any(rule.then == "allow" and not rule.selectors() for rule in policy.rules)
    return policy.default == "safe" and not allows_all


def _check_learned(reader: NodeReader, policy: PolicyConfig) -> None:
    names = {rule.name for rule in policy.rules}
    for number, rule in enumerate(policy.learned):
        path: KeyPath = ("policy", "learned", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule has the name {quote(rule.name)}",
                "use unique names",
            )
        names.add(rule.name)
        if not rule.tools:
            reader.report((*path, "tools"), "the rule has no tool", "add at least one")
        for index, tool in enumerate(rule.tools):
            if _GLOB_CHARACTERS & {*tool}:
                reader.report(
                    (*path, "tools", index),
                    "learned rules have no globs",
                    "list the tools by name, or write a rule with globs under policy.rules",
                )
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except InvalidValueError as error:
                reader.report((*path, "when"), error.message, error.hint)


def _check_kinds(reader: NodeReader, path: KeyPath, rule: RuleConfig) -> None:
    includes_tool_calls = not rule.kinds
    for number, text in enumerate(rule.kinds):
        kind_path: KeyPath = (*path, "kinds", number)
        problem = find_pattern_problem(text)
        if problem:
            reader.report(kind_path, problem, "write one such as mcp/request:resources/*")
            return
        prefix = compile_pattern(text).prefix
        if not _are_prefixes_compatible(prefix, _REQUESTS):
            reader.report(
                kind_path,
                "this can never match: requests of callers are mcp/request:METHOD",
                f"write {_REQUESTS}{text if text.startswith(_METHODS) else '*'}",
            )
            return
        if rule.then in ("confirm", "verify") and not prefix.startswith(_TOOL_CALLS):
            reader.report(
                kind_path,
                f"only tool calls can wait for approval, and this applies {rule.then} to others",
                f"write {_TOOL_CALLS}, or then: deny",
            )
            return
        includes_tool_calls = includes_tool_calls or _are_prefixes_compatible(prefix, _TOOL_CALLS)
    if not includes_tool_calls:
        for name in _TOOL_SELECTORS:
            if getattr(rule, name):
                reader.report(
                    (*path, name),
                    f"{name} only applies to tool calls, and kinds excludes them",
                    "remove one of the two",
                )


def _are_prefixes_compatible(first: str, second: str) -> bool:
    """Return whether a text can begin with both."""
    return first.startswith(second) or second.startswith(first)


# -- `identity`. `identity_problems` finds everything by which one caller could pass for another.
# The node calls it, too, for a config that was not read from a file.

RESERVED_CALLER_NAMES: Final = frozenset({"local", "parent"})
"""Names that the node uses itself. No token, certificate or issuer may use them."""


def is_reserved_name(name: str) -> bool:
    """Return whether the node uses this caller name itself."""
    return name in RESERVED_CALLER_NAMES or name.startswith("config:")


class IdentityProblem(NamedTuple):
    """A problem of `identity` by which callers could be confused."""

    path: KeyPath
    message: str
    hint: str


def identity_problems(identity: IdentityConfig, *, client_ca: bool) -> Iterator[IdentityProblem]:
    """Yield all problems by which callers could be confused.

    Args:
        client_ca: a CA verifies client certificates.
    """
    names: set[str] = set()
    for index, issuer in enumerate(identity.issuers):
        if issuer.issuer in names:
            path: KeyPath = ("identity", "issuers", index, "issuer")
            yield IdentityProblem(path, "this issuer is listed twice", "remove one")
        names.add(issuer.issuer)
    yield from _prefix_problems(identity)
    if identity.certificates and not client_ca:
        yield IdentityProblem(
            ("identity", "certificates"),
            "there is no CA to verify these certificates",
            "set tls.client_ca to the CA that signed them",
        )
    for index, certificate in enumerate(identity.certificates):
        if is_reserved_name(certificate.name):
            yield IdentityProblem(
                ("identity", "certificates", index, "name"),
                f"{quote(certificate.name)} is reserved for the node",
                "choose another name",
            )


def _prefix_problems(identity: IdentityConfig) -> Iterator[IdentityProblem]:
    """Yield prefixes that begin with another prefix: with `""`, a caller could be called `corp:x`,
    which is another caller's name with the prefix `corp:`."""
    places: list[tuple[KeyPath, str]] = [
        *((("identity", "issuers", i), issuer.prefix) for i, issuer in enumerate(identity.issuers)),
        *(
            (("identity", "introspection", i), introspection.prefix)
            for i, introspection in enumerate(identity.introspection)
        ),
    ]
    for index, (path, prefix) in enumerate(places):
        for _, other_prefix in places[:index]:
            if prefix.startswith(other_prefix) or other_prefix.startswith(prefix):
                yield IdentityProblem(
                    path,
                    f"the prefixes {quote(prefix)} and {quote(other_prefix)} overlap, so callers "
                    "could be confused",
                    "give each its own prefix, such as corp: and app:",
                )
                break


def check_identity(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report all problems of `identity`."""
    identity: IdentityConfig | None = values.get("identity")
    if identity is None:
        return
    _check_issuers(reader, identity)
    tls = values.get("tls")
    client_ca = tls is not None and tls.client_ca is not None
    for problem in identity_problems(identity, client_ca=client_ca):
        reader.report(*problem)
    for index, introspection in enumerate(identity.introspection):
        if not is_confidential(introspection.url):
            reader.report(
                ("identity", "introspection", index, "url"),
                "tokens are sent there, so http is not allowed",
                "write https://",
            )


def _check_issuers(reader: NodeReader, identity: IdentityConfig) -> None:
    for index, issuer in enumerate(identity.issuers):
        path: KeyPath = ("identity", "issuers", index)
        if issuer.jwks_url is not None and issuer.jwks_file is not None:
            reader.report((*path, "jwks_file"), "jwks_url and jwks_file are both set", "remove one")
        elif issuer.jwks_file is None and not _can_fetch_keys(issuer.jwks_url or issuer.issuer):
            reader.report(
                path,
                "the issuer's keys cannot be fetched securely",
                "set an https jwks_url, or jwks_file",
            )
        if not issuer.algorithms:
            reader.report(
                (*path, "algorithms"),
                "without algorithms no signature is accepted",
                "remove the key, or write [ES256]",
            )


def _can_fetch_keys(url: str) -> bool:
    """Return whether keys may be fetched from a URL."""
    return url.startswith(("http://", "https://")) and is_confidential(url)
