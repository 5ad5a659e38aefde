"""What must hold between fields, servers and the node as a whole.

Runs after reading, on whatever could be read: a typo in one server does not hide what is wrong
with another.
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
    BadValue,
    ConfigError,
    KeyPath,
    Problem,
    format_path,
    one_of,
    quoted,
)
from interlock.core.config.quantities import is_confidential
from interlock.core.config.reader import NodeReader
from interlock.core.config.secrets import resolve
from interlock.core.config.trust import ApprovalsConfig, IdentityConfig, PolicyConfig, RuleConfig
from interlock.protocol.kinds import REQUEST, compile_pattern, find_pattern_problem, request_kind
from interlock.protocol.mcp import TOOLS_CALL

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


# -- Rules of the policy: a rule that can never match protects nobody.

RESERVED_NAMES: Final = "default:"
"""How the node calls what happens when no rule fits."""
_REQUESTS: Final = f"{REQUEST}:"
_TOOL_CALLS: Final = request_kind(TOOLS_CALL)
_METHODS: Final = ("tools/", "resources/", "prompts/")
_GLOB: Final = frozenset("*?[")
_OF_TOOLS: Final = ("tools", "effects", "annotations")


def check_policy(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem with the rules."""
    _check_gates(reader, values)
    policy: PolicyConfig | None = values.get("policy")
    if policy is None:
        return
    names: set[str] = set()
    for number, rule in enumerate(policy.rules):
        path: KeyPath = ("policy", "rules", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule is called {quoted(rule.name)}",
                "give each its own name",
            )
        elif rule.name.startswith(RESERVED_NAMES):
            reader.report(
                (*path, "name"),
                f"names with {RESERVED_NAMES} are the node's own",
                "choose another name",
            )
        names.add(rule.name)
        _check_kinds(reader, path, rule)
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except BadValue as bad:
                reader.report((*path, "when"), bad.message, bad.hint)
    _check_learned(reader, policy)


def _check_gates(reader: NodeReader, values: dict[str, Any]) -> None:
    """Calls must not wait for somebody who cannot be there."""
    approvals: ApprovalsConfig | None = values.get("approvals")
    if approvals is None or approvals.enrolled or approvals.anchors:
        return
    unread = "policy" not in values and ("policy",) in reader.places
    if not unread and can_hold(values.get("policy") or PolicyConfig()):
        reader.report(
            ("approvals", "enrolled"),
            "the policy makes calls wait for a human, and nobody's proof counts",
            "name somebody under approvals.anchors, or leave this out and run: interlock keys new",
        )


def can_hold(policy: PolicyConfig) -> bool:
    """Whether a call can come to wait for a human by these rules."""
    if any(rule.then in ("confirm", "verify") for rule in policy.rules):
        return True
    frees_all = any(rule.then == "allow" and not rule.selectors() for rule in policy.rules)
    return policy.default == "safe" and not frees_all


def _check_learned(reader: NodeReader, policy: PolicyConfig) -> None:
    names = {rule.name for rule in policy.rules}
    for number, rule in enumerate(policy.learned):
        path: KeyPath = ("policy", "learned", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule is called {quoted(rule.name)}",
                "give each its own name",
            )
        names.add(rule.name)
        if not rule.tools:
            reader.report((*path, "tools"), "it is about no tool", "name at least one")
        for at, tool in enumerate(rule.tools):
            if _GLOB & {*tool}:
                reader.report(
                    (*path, "tools", at),
                    "a rule that was learned is about tools that were decided about",
                    "name each of them; for globs write a rule under policy.rules",
                )
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except BadValue as bad:
                reader.report((*path, "when"), bad.message, bad.hint)


def _check_kinds(reader: NodeReader, path: KeyPath, rule: RuleConfig) -> None:
    calls_a_tool = not rule.kinds
    for number, text in enumerate(rule.kinds):
        place: KeyPath = (*path, "kinds", number)
        problem = find_pattern_problem(text)
        if problem:
            reader.report(place, problem, "write one such as mcp/request:resources/*")
            return
        fixed = compile_pattern(text).prefix
        if not _may_begin_with(fixed, _REQUESTS):
            reader.report(
                place,
                "this can never fit: what callers send is called mcp/request:METHOD",
                f"write {_REQUESTS}{text if text.startswith(_METHODS) else '*'}",
            )
            return
        if rule.then in ("confirm", "verify") and not fixed.startswith(_TOOL_CALLS):
            reader.report(
                place,
                f"only tool calls can wait for a human, and this is {rule.then} for others, too",
                f"write {_TOOL_CALLS}, or then: deny",
            )
            return
        calls_a_tool = calls_a_tool or _may_begin_with(fixed, _TOOL_CALLS)
    if not calls_a_tool:
        for name in _OF_TOOLS:
            if getattr(rule, name):
                reader.report(
                    (*path, name),
                    f"{name} is about tool calls, and kinds leaves them out",
                    "remove one of the two",
                )


def _may_begin_with(fixed: str, wanted: str) -> bool:
    """Whether something can begin with both."""
    return fixed.startswith(wanted) or wanted.startswith(fixed)


# -- The parts of `identity`. `identity_problems` is the one place for what would let one caller
# pass for another: the node asks it as well, for a config that was not read from a file.

OWN_NAMES: Final = frozenset({"local", "parent"})
"""What the node itself calls somebody: no token, certificate or issuer may name one of these."""


def is_own_name(name: str) -> bool:
    """Whether only the node itself calls somebody so."""
    return name in OWN_NAMES or name.startswith("config:")


class IdentityProblem(NamedTuple):
    """Something about `identity` by which callers could not be told apart."""

    place: KeyPath
    what: str
    hint: str


def identity_problems(identity: IdentityConfig, *, client_ca: bool) -> Iterator[IdentityProblem]:
    """Everything that must hold between its parts, and does not. `client_ca`: whether there is
    somebody by whom certificates are checked."""
    seen: set[str] = set()
    for index, issuer in enumerate(identity.issuers):
        if issuer.issuer in seen:
            place: KeyPath = ("identity", "issuers", index, "issuer")
            yield IdentityProblem(place, "this issuer is there twice", "keep one of them")
        seen.add(issuer.issuer)
    yield from _prefix_problems(identity)
    if identity.certificates and not client_ca:
        yield IdentityProblem(
            ("identity", "certificates"),
            "nobody could check these certificates",
            "name the CA that signed them in tls.client_ca",
        )
    for index, one in enumerate(identity.certificates):
        if is_own_name(one.name):
            yield IdentityProblem(
                ("identity", "certificates", index, "name"),
                f"{quoted(one.name)} is what the node itself calls somebody",
                "choose another name",
            )


def _prefix_problems(identity: IdentityConfig) -> Iterator[IdentityProblem]:
    """No prefix may begin another: behind `""` somebody could be called `corp:x`, who is somebody
    else behind `corp:`."""
    places: list[tuple[KeyPath, str]] = [
        *((("identity", "issuers", i), one.prefix) for i, one in enumerate(identity.issuers)),
        *(
            (("identity", "introspection", i), one.prefix)
            for i, one in enumerate(identity.introspection)
        ),
    ]
    for number, (place, prefix) in enumerate(places):
        for _, other in places[:number]:
            if prefix.startswith(other) or other.startswith(prefix):
                yield IdentityProblem(
                    place,
                    f"the prefixes {quoted(prefix)} and {quoted(other)} begin alike, so callers "
                    "could pass for others",
                    "give each its own prefix, such as corp: and app:",
                )
                break


def check_identity(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem of `identity`."""
    identity: IdentityConfig | None = values.get("identity")
    if identity is None:
        return
    _check_issuers(reader, identity)
    tls = values.get("tls")
    client_ca = tls is not None and tls.client_ca is not None
    for problem in identity_problems(identity, client_ca=client_ca):
        reader.report(*problem)
    for index, one in enumerate(identity.introspection):
        if not is_confidential(one.url):
            reader.report(
                ("identity", "introspection", index, "url"),
                "tokens would be sent there over plain http",
                "write https://",
            )


def _check_issuers(reader: NodeReader, identity: IdentityConfig) -> None:
    for index, one in enumerate(identity.issuers):
        place: KeyPath = ("identity", "issuers", index)
        if one.jwks_url is not None and one.jwks_file is not None:
            reader.report(
                (*place, "jwks_file"), "its keys are in a file and at an address", "keep one"
            )
        elif one.jwks_file is None and not _reachable(one.jwks_url or one.issuer):
            reader.report(
                place,
                "its keys would come over plain http, or from nowhere",
                "give an https jwks_url, or a jwks_file",
            )
        if not one.algorithms:
            reader.report(
                (*place, "algorithms"),
                "no signature would ever be accepted",
                "leave it out, or write [ES256]",
            )


def _reachable(url: str) -> bool:
    """Whether keys may be asked for there."""
    return url.startswith(("http://", "https://")) and is_confidential(url)
