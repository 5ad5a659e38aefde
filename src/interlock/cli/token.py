"""`interlock token`: API tokens of a node, made, listed and revoked, whether it runs or not."""

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

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Which = Annotated[str, typer.Argument(metavar="ID|NAME", help="A token, or all of a caller.")]

DEFAULT_EXPIRY: Final = "90d"
_PERMISSIONS: Final = ("call", "register", "approve", "join")
_LONGEST_NAME: Final = 100


@token.callback()
def _token() -> None:
    """Make, list and revoke the API tokens of a node.

    Only a digest of a token is kept: it can be seen once, when it is made. A running node heeds
    every change within a second (`identity.revocation_seconds`).
    """


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Who presents it: the caller's name.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            "-s",
            metavar="SCOPE",
            help="The most it may do, such as read or write:github.*. Again for more of them. "
            "Default: no limit.",
            show_default=False,
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE", help="A role that rules speak of."),
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(
            "--may",
            metavar="WHAT",
            help="What it is for: call, join (topics alone), register or approve. Default: call.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str,
        typer.Option("--expires", metavar="TIME", help="When it is over: 12h, 90d, 1y, or never."),
    ] = DEFAULT_EXPIRY,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask before the first token of the node."),
    ] = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Make a token and print it, this one time.

    With the first token of a node, every HTTP client needs one: on a terminal you are asked first.

    \b
    Examples:
      interlock token create ci --scope read --expires 30d
      interlock token create agent --scope read --scope 'write:github.*' --role developers
      interlock token create edge --may register --expires never
    """
    target = node_discovery.find_local_node(config, node)
    ends = _ends(expires)
    for one in scope or ():
        _check_scope(one)
    for one in may or ():
        if one not in _PERMISSIONS:
            raise typer.BadParameter(
                f"{one} is none of {', '.join(_PERMISSIONS)}", param_hint="may"
            )
    _check_name(name, target)
    store = _store(target)
    before = store.tokens()
    if not before and not _config_demands_one(target):
        output.print_note(
            "Warning: this is the first token of this node. From now on every HTTP client needs "
            "a token, on this machine too; clients without one are rejected."
        )
        if not yes and sys.stdin.isatty() and not output.confirm(f"Create a token for {name}?"):
            output.print_note("No token was created.")
            raise typer.Exit(output.FAILED)
    made, shown = store.create(
        name,
        may=_each_once(may or ["call"]),
        roles=_each_once(role or []),
        scopes=None if not scope else _each_once(scope),
        expires=ends,
    )
    if json:
        output.print_json({**_as_dict(made), "token": shown})
    else:
        print(shown)
    output.print_note(
        f"This is the token of {name} ({made.id}). It is shown this one time: keep it safe."
    )
    others = [one.id for one in before if one.name == name and one.state(time.time()) == "good"]
    if others:
        output.print_note(f"{name} has other tokens that still count: {', '.join(others)}.")


@token.command("list")
def list_tokens(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Show every token: whose it is, what it may do, and whether it still counts.

    \b
    Example:
      interlock token list
    """
    target = node_discovery.find_local_node(config, node)
    store = _store(target)
    found = store.tokens()
    others = store.revocations()
    if json:
        output.print_json(
            {
                "tokens": [_as_dict(one) for one in found],
                "revoked": [one._asdict() for one in others],
            }
        )
        return
    now = time.time()
    for one in found:
        scopes = "no limit" if one.scopes is None else " ".join(one.scopes)
        roles = f"roles {','.join(one.roles)}" if one.roles else "no roles"
        ends = "never expires" if one.expires is None else f"expires {format_local(one.expires)}"
        used = "never used" if one.last_used is None else f"used {format_local(one.last_used)}"
        print(
            f"{one.id}  {one.name:<20}  {one.state(now):<7}  {','.join(one.may):<8}  "
            f"{output.sanitize(roles):<20}  {scopes:<24}  {ends}  {used}"
        )
    for other in others:
        print(
            f"revoked {other.kind} {output.sanitize(other.value)} since {format_local(other.since)}"
        )
    if not found and not others:
        output.print_note(
            f"there are no tokens: {target.selector.format_command('token create NAME')} makes one."
        )


@token.command()
def show(
    which: Which,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show everything about a token but its secret, which nobody knows any more.

    \b
    Example:
      interlock token show ci
    """
    target = node_discovery.find_local_node(config, node)
    found = _found(_store(target), which, target.selector)
    if json:
        output.print_json([_as_dict(one) for one in found])
        return
    for number, one in enumerate(found):
        if number:
            print()
        for key, value in _as_dict(one).items():
            shown = format_local(value) if isinstance(value, float) else value
            if isinstance(shown, list):
                shown = " ".join(shown)
            print(f"{key:<10} {'-' if shown in (None, '') else shown}")


@token.command()
def revoke(
    which: Annotated[
        str,
        typer.Argument(
            metavar="ID|NAME", help="A token, or all of a caller; with an option: what it says."
        ),
    ],
    subject: Annotated[
        bool,
        typer.Option("--subject", help="Everything that other issuers gave this caller until now."),
    ] = False,
    jti: Annotated[
        bool, typer.Option("--jti", help="The one signed token of another issuer with this id.")
    ] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Let a token count no more. Sessions and streams of its caller end at once.

    \b
    Examples:
      interlock token revoke ci
      interlock token revoke --subject corp:somebody@example.com
    """
    if subject and jti:
        raise typer.BadParameter("--subject and --jti cannot stand together")
    target = node_discovery.find_local_node(config, node)
    store = _store(target)
    if subject or jti:
        kind = "subject" if subject else "jti"
        store.revoke_of_others(kind, which)
        print(f"{kind} {which} is revoked.")
        return
    found = _found(store, which, target.selector)
    if not store.revoke([one.id for one in found]):
        output.print_note(f"{which} was revoked before.")
        raise typer.Exit(output.FAILED)
    for one in found:
        print(f"{one.id} of {one.name} is revoked.")
    _say_what_remains(store, target)


@token.command()
def forget(
    which: Which, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """Remove the record of a token that is revoked or expired.

    HTTP clients need a token as long as there is a record of any. Once none is left, clients on
    this machine need no token after the next restart of the node, unless the config demands one.

    \b
    Example:
      interlock token forget ci
    """
    target = node_discovery.find_local_node(config, node)
    store = _store(target)
    now = time.time()
    found = _found(store, which, target.selector)
    good = [one.id for one in found if one.state(now) == "good"]
    if good:
        output.print_problem(f"{', '.join(good)} still counts: revoke it first.")
        raise typer.Exit(output.FAILED)
    store.forget([one.id for one in found])
    for one in found:
        print(f"{one.id} of {one.name} is forgotten.")
    _say_what_remains(store, target)


def _config_demands_one(target: node_discovery.TargetNode) -> bool:
    """Whether HTTP clients need a token by the config alone."""
    config = target.config
    return bool(config.tokens or config.identity.issuers or config.identity.introspection)


def _say_what_remains(store: AccessStore, target: node_discovery.TargetNode) -> None:
    """Whether HTTP clients still need a token, and how to undo that."""
    left = store.tokens()
    if any(one.state(time.time()) == "good" for one in left):
        return
    if _config_demands_one(target):
        output.print_note("HTTP clients still need a token: the config demands one.")
    elif left:
        names = shlex.join(dict.fromkeys(one.name for one in left))
        create, forget = map(
            target.selector.format_command, ("token create NAME", "token forget NAME")
        )
        output.print_note(
            "HTTP clients still need a token, and no valid one is left. Create one with "
            f"`{create}`. To let clients on this machine in without a token: "
            f"`{forget}` for each of {names}, then restart the node."
        )
    else:
        output.print_note(
            "No token is left. HTTP clients on this machine need none once the node is restarted."
        )


def _store(target: node_discovery.TargetNode) -> AccessStore:
    from interlock.core.paths import access_path, make_private
    from interlock.trust.identity.token_store import AccessStore

    path = access_path(target.config, os.environ, target.base_dir)
    make_private(path.parent)
    return AccessStore(path)


def _found(store: AccessStore, which: str, named: node_discovery.NodeSelector) -> list[AccessToken]:
    found = store.find(which)
    if not found:
        output.print_problem(
            f"There is no token {output.sanitize(which)}. "
            f"`{named.format_command('token list')}` lists all tokens. "
            "Revoke tokens of other issuers with --subject or --jti."
        )
        raise typer.Exit(output.FAILED)
    return found


def _check_name(name: str, target: node_discovery.TargetNode) -> None:
    if not name or not name.isprintable() or name != name.strip() or len(name) > _LONGEST_NAME:
        raise typer.BadParameter("a name is some printable text", param_hint="name")
    from interlock.core.config.checks import is_own_name

    if is_own_name(name):
        raise typer.BadParameter(
            f"{name} is what the node itself calls somebody", param_hint="name"
        )
    known = [one.name for one in target.config.tokens]
    known += [one.name for one in target.config.identity.certificates]
    if name in known:
        raise typer.BadParameter(
            f"{name} is a caller of the config already: choose another name", param_hint="name"
        )


def _check_scope(text: str) -> None:
    from interlock.core.config.trust import SCOPE_PATTERN

    if not re.fullmatch(SCOPE_PATTERN, text):
        raise typer.BadParameter(
            f"{text} is no scope: write read, write or admin, or one of them with names behind it, "
            "such as write:github.*",
            param_hint="scope",
        )


def _ends(text: str) -> float | None:
    if text == "never":
        return None
    try:
        return time.time() + parse_duration(text, most=MAX_DURATION_SECONDS)
    except ValueError as wrong:
        raise typer.BadParameter(
            f"{wrong}: write 30m, 12h, 90d, 8w, 1y, or never", param_hint="expires"
        ) from None


def _each_once(words: list[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _as_dict(one: AccessToken) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "state": one.state(time.time()),
        "may": list(one.may),
        "roles": list(one.roles),
        "scopes": None if one.scopes is None else list(one.scopes),
        "created": one.created,
        "expires": one.expires,
        "last_used": one.last_used,
        "revoked": one.revoked,
    }
