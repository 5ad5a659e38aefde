"""`interlock token`: create, list and revoke API tokens of a node. The node may be stopped."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.primitives.durations import parse_duration
from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import MAX_DURATION_SECONDS

if TYPE_CHECKING:
    from interlock.trust.identity.api_tokens import AccessToken
    from interlock.trust.identity.token_store import AccessStore

token = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TokenArgument = Annotated[
    str, typer.Argument(metavar="ID|NAME", help="Id of a token, or name of a caller.")
]

DEFAULT_EXPIRY: Final = "90d"
_PERMISSIONS: Final = ("call", "register", "approve", "join")
_MAX_NAME_LENGTH: Final = 100


@token.callback()
def _token() -> None:
    """Create, list and revoke the API tokens of a node.

    The node stores only a digest, so a token is shown once, when it is created. A running node
    applies every change within a second (`identity.revocation_seconds`).
    """


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the caller that uses the token.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            "-s",
            metavar="SCOPE",
            help="Limit the token to this scope, such as read or write:github.*. Can be repeated. "
            "Default: no limit.",
            show_default=False,
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role", "-r", metavar="ROLE", help="Role for policy rules. Can be repeated."
        ),
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(
            "--may",
            metavar="WHAT",
            help="Permission: call, join (topics only), register or approve. Can be repeated. "
            "Default: call.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="TIME", help="Expire after 12h, 90d, 1y, …, or never."),
    ] = DEFAULT_EXPIRY,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Skip the confirmation before the first token of the node."
        ),
    ] = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Create a token and print it once.

    After the first token of a node is created, every HTTP client needs a token. On a terminal, the
    command asks before it creates the first one.

    \b
    Examples:
      interlock token create ci --scope read --expires 30d
      interlock token create agent --scope read --scope 'write:github.*' --role developers
      interlock token create edge --may register --expires never
    """
    target = node_discovery.find_local_node(config, node)
    expires_at = _read_expiry(expires)
    for scope_name in scope or ():
        _check_scope(scope_name)
    for permission in may or ():
        if permission not in _PERMISSIONS:
            raise typer.BadParameter(
                f"Must be one of {', '.join(_PERMISSIONS)}. Found {permission!r}.", param_hint="may"
            )
    _check_name(name, target)
    store = _open_store(target)
    existing = store.tokens()
    if not existing and not _config_requires_token(target):
        output.print_note(
            "Warning: this is the first token of this node. From now on every HTTP client needs "
            "a token, on this machine too; clients without one are rejected."
        )
        if not yes and sys.stdin.isatty() and not output.confirm(f"Create a token for {name}?"):
            output.print_note("No token was created.")
            raise typer.Exit(output.FAILED)
    created, secret = store.create(
        name,
        may=_unique(may or ["call"]),
        roles=_unique(role or []),
        scopes=None if not scope else _unique(scope),
        expires=expires_at,
    )
    if json:
        output.print_json({**_token_as_dict(created), "token": secret})
    else:
        print(secret)
    output.print_note(
        f"This is the token of {name} ({created.id}). It is shown only once. Store it safely."
    )
    other_ids = [
        record.id
        for record in existing
        if record.name == name and record.state(time.time()) == "good"
    ]
    if other_ids:
        output.print_note(f"{name} has other valid tokens: {', '.join(other_ids)}.")


@token.command("list")
def list_tokens(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """List the tokens with caller, state, permissions, roles, scopes and expiry.

    \b
    Example:
      interlock token list
    """
    target = node_discovery.find_local_node(config, node)
    store = _open_store(target)
    tokens = store.tokens()
    revocations = store.revocations()
    if json:
        output.print_json(
            {
                "tokens": [_token_as_dict(record) for record in tokens],
                "revoked": [record._asdict() for record in revocations],
            }
        )
        return
    now = time.time()
    for record in tokens:
        scopes = "no limit" if record.scopes is None else " ".join(record.scopes)
        roles = f"roles {','.join(record.roles)}" if record.roles else "no roles"
        expiry_text = (
            "never expires" if record.expires is None else f"expires {format_local(record.expires)}"
        )
        usage_text = (
            "never used" if record.last_used is None else f"used {format_local(record.last_used)}"
        )
        print(
            f"{record.id}  {record.name:<20}  {record.state(now):<7}  {','.join(record.may):<8}  "
            f"{output.sanitize(roles):<20}  {scopes:<24}  {expiry_text}  {usage_text}"
        )
    for revocation in revocations:
        print(
            f"revoked {revocation.kind} {output.sanitize(revocation.value)} since "
            f"{format_local(revocation.since)}"
        )
    if not tokens and not revocations:
        output.print_note(
            f"No tokens. Create one: `{target.selector.format_command('token create NAME')}`"
        )


@token.command()
def show(
    selected: TokenArgument,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show all fields of a token. The token itself is not stored, so it cannot be shown.

    \b
    Example:
      interlock token show ci
    """
    target = node_discovery.find_local_node(config, node)
    records = _find_tokens(_open_store(target), selected, target.selector)
    if json:
        output.print_json([_token_as_dict(record) for record in records])
        return
    for number, record in enumerate(records):
        if number:
            print()
        for key, value in _token_as_dict(record).items():
            text = format_local(value) if isinstance(value, float) else value
            if isinstance(text, list):
                text = " ".join(text)
            print(f"{key:<10} {'-' if text in (None, '') else text}")


@token.command()
def revoke(
    selected: Annotated[
        str,
        typer.Argument(
            metavar="ID|NAME",
            help="Id of a token, or name of a caller. With --subject: a caller. With --jti: an id.",
        ),
    ],
    subject: Annotated[
        bool,
        typer.Option(
            "--subject", help="Revoke all present tokens of other issuers for this caller."
        ),
    ] = False,
    jti: Annotated[
        bool, typer.Option("--jti", help="Revoke the token of another issuer with this id (jti).")
    ] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Revoke a token, or all tokens of a caller. Sessions and streams of the caller end at once.

    \b
    Examples:
      interlock token revoke ci
      interlock token revoke --subject corp:somebody@example.com
    """
    if subject and jti:
        raise typer.BadParameter("Use either --subject or --jti, not both.")
    target = node_discovery.find_local_node(config, node)
    store = _open_store(target)
    if subject or jti:
        kind = "subject" if subject else "jti"
        store.revoke_external(kind, selected)
        print(f"{kind} {selected} is revoked.")
        return
    records = _find_tokens(store, selected, target.selector)
    if not store.revoke([record.id for record in records]):
        output.print_note(f"{selected} is already revoked.")
        raise typer.Exit(output.FAILED)
    for record in records:
        print(f"{record.id} of {record.name} is revoked.")
    _print_remaining_state(store, target)


@token.command()
def remove(
    selected: TokenArgument, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """Remove the record of a revoked or expired token.

    HTTP clients need a token while the node has a record of any token. If no record remains,
    clients on this machine need no token after the next restart of the node, unless the config
    requires one.

    \b
    Example:
      interlock token remove ci
    """
    target = node_discovery.find_local_node(config, node)
    store = _open_store(target)
    now = time.time()
    records = _find_tokens(store, selected, target.selector)
    active_ids = [record.id for record in records if record.state(now) == "good"]
    if active_ids:
        output.print_problem(
            f"Cannot remove valid tokens: {', '.join(active_ids)}. Revoke them first."
        )
        raise typer.Exit(output.FAILED)
    store.remove([record.id for record in records])
    for record in records:
        print(f"{record.id} of {record.name} is removed.")
    _print_remaining_state(store, target)


def _config_requires_token(target: node_discovery.TargetNode) -> bool:
    """Return whether the config alone requires a token of HTTP clients."""
    config = target.config
    return bool(config.tokens or config.identity.issuers or config.identity.introspection)


def _print_remaining_state(store: AccessStore, target: node_discovery.TargetNode) -> None:
    """Print whether HTTP clients still need a token, and how to change that."""
    remaining = store.tokens()
    if any(record.state(time.time()) == "good" for record in remaining):
        return
    if _config_requires_token(target):
        output.print_note("HTTP clients still need a token: the config requires one.")
    elif remaining:
        names = shlex.join(dict.fromkeys(record.name for record in remaining))
        create, remove = map(
            target.selector.format_command, ("token create NAME", "token remove NAME")
        )
        output.print_note(
            f"HTTP clients still need a token, and no valid one remains. Create one: `{create}`. "
            "To allow clients on this machine without a token: "
            f"`{remove}` for each of {names}, then restart the node."
        )
    else:
        output.print_note(
            "No token remains. HTTP clients on this machine need no token after a restart of the "
            "node."
        )


def _open_store(target: node_discovery.TargetNode) -> AccessStore:
    from interlock.core.paths import access_path, make_private
    from interlock.trust.identity.token_store import AccessStore

    path = access_path(target.config, os.environ, target.base_dir)
    make_private(path.parent)
    return AccessStore(path)


def _find_tokens(
    store: AccessStore, selected: str, selector: node_discovery.NodeSelector
) -> list[AccessToken]:
    records = store.find(selected)
    if not records:
        output.print_problem(
            f"There is no token {output.sanitize(selected)}. "
            f"`{selector.format_command('token list')}` lists all tokens. "
            "Revoke tokens of other issuers with --subject or --jti."
        )
        raise typer.Exit(output.FAILED)
    return records


def _check_name(name: str, target: node_discovery.TargetNode) -> None:
    if not name or not name.isprintable() or name != name.strip() or len(name) > _MAX_NAME_LENGTH:
        raise typer.BadParameter(
            f"Use 1 to {_MAX_NAME_LENGTH} printable characters, without spaces around them.",
            param_hint="name",
        )
    from interlock.core.config.checks import is_reserved_name

    if is_reserved_name(name):
        raise typer.BadParameter(
            f"{name} is a reserved caller name. Choose another name.", param_hint="name"
        )
    names = [config.name for config in target.config.tokens]
    names += [config.name for config in target.config.identity.certificates]
    if name in names:
        raise typer.BadParameter(
            f"{name} is a caller in the config. Choose another name.", param_hint="name"
        )


def _check_scope(text: str) -> None:
    from interlock.core.config.trust import SCOPE_PATTERN

    if not re.fullmatch(SCOPE_PATTERN, text):
        raise typer.BadParameter(
            f"{text} is not a scope. Write read, write or admin, or one of them with tool names, "
            "such as write:github.*",
            param_hint="scope",
        )


def _read_expiry(text: str) -> float | None:
    if text == "never":
        return None
    try:
        return time.time() + parse_duration(text, maximum=MAX_DURATION_SECONDS)
    except ValueError as error:
        raise typer.BadParameter(
            f"{error}: write 30m, 12h, 90d, 8w, 1y, or never", param_hint="expires"
        ) from None


def _unique(values: list[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _token_as_dict(record: AccessToken) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state(time.time()),
        "may": list(record.may),
        "roles": list(record.roles),
        "scopes": None if record.scopes is None else list(record.scopes),
        "created": record.created,
        "expires": record.expires,
        "last_used": record.last_used,
        "revoked": record.revoked,
    }
