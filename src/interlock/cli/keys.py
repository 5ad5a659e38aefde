"""`interlock keys`: who may confirm calls of this node, and with what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli import operator_key, own_keys, running, say, where
from interlock.cli.node_keys import node_keys
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.stores.operators import OperatorStore

keys = typer.Typer(no_args_is_help=True)
keys.add_typer(node_keys, name="node")

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Name = Annotated[str, typer.Argument(help="Who confirms with it; shown in the journal.")]
Tools = Annotated[
    list[str] | None,
    typer.Option("--tool", metavar="GLOB", help="Only calls of these tools. May be repeated."),
]
CallerName = Annotated[
    str | None,
    typer.Option(
        "--caller", metavar="NAME", help="Which caller that is: nobody confirms its own calls."
    ),
]
_CALLERS = {"local": "this machine's own user", "parent": "a parent node"}


@keys.callback()
def _keys() -> None:
    """Make and enrol the keys with which people confirm calls.

    A call that waits is confirmed with an operator's key, a key of a browser, or a passkey. The
    node keeps their public parts only.
    """


@keys.command()
def new(
    name: Name,
    tool: Tools = None,
    caller: CallerName = None,
    no_passphrase: Annotated[
        bool, typer.Option("--no-passphrase", help="Whoever reads the file can sign with it.")
    ] = False,
    passphrase_file: Annotated[
        Path | None,
        typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase."),
    ] = None,
    no_enrol: Annotated[
        bool, typer.Option("--no-enrol", help="Only make it; for other nodes.")
    ] = False,
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Make a key of your own (Ed25519), and enrol it with the node.

    \b
    Examples:
      interlock keys new chief
      interlock keys new ops --tool 'github.*'
    """
    from interlock.node.operators import enrolled_key
    from interlock.stores.operators import Invitation

    operator_key.checked_name(name)
    store = None
    if not no_enrol:
        meant = running.with_files(config, node)
        store = _store(meant)
        _tell_where(meant)
    _must_be_new(name, store, own_keys.Named(config, node))
    if name in _CALLERS:
        say.note(
            f"Warning: {name} is what the node calls {_CALLERS[name]}, and nobody confirms their "
            "own calls: choose another name."
        )
    passphrase = None
    if no_passphrase:
        say.note("Warning: the key has no passphrase: whoever reads the file can confirm calls.")
    else:
        passphrase = operator_key.read_passphrase(
            passphrase_file, f"A passphrase for the key of {name}", new=True
        )
    private, public, pem = operator_key.make(name, passphrase)
    if store is not None:
        invitation = Invitation(name, tuple(tool or ()), caller or "")
        try:
            store.add(enrolled_key(pem, invitation))
        except BaseException:
            # A key that nobody was told of is of no use, and in the way of the next attempt.
            operator_key.unmake(private, public)
            raise
    say.note(f"private key: {private}")
    if store is not None:
        say.note(f"enrolled in:  {store.path}")
    say.note("For the config of another node:")
    print(f"approvals:\n  anchors:\n    - name: {name}\n      key: {public}")
    if tool:
        print(f"      tools: [{', '.join(repr(glob) for glob in tool)}]")
    if caller:
        print(f"      caller: {caller}")


@keys.command("list")
def list_keys(
    config: where.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Show whose proofs count: enrolled keys and passkeys, and the anchors of the config."""
    meant = running.with_files(config, node)
    store = _store(meant)
    rows = [
        {
            "name": one.name,
            "kind": one.kind,
            "id": one.id,
            "tools": list(one.tools),
            "caller": one.caller,
            "since": one.created,
            "counts": meant.config.approvals.enrolled,
        }
        for one in store.all()
    ]
    rows += [
        {
            "name": one.name,
            "kind": f"{one.kind} (config)",
            "id": one.key or "",
            "tools": list(one.tools),
            "caller": one.caller or "",
            "since": None,
            "counts": True,
        }
        for one in meant.config.approvals.anchors
    ]
    if json:
        say.as_json(rows)
        return
    for row in rows:
        since = row["since"]
        when = operator_key.local_time(since) if isinstance(since, float) else ""
        limits = row["tools"] if isinstance(row["tools"], list) else []
        only = f"  only {', '.join(limits)}" if limits else ""
        void = "" if row["counts"] else "  (does not count: approvals.enrolled is off)"
        short = str(row["id"])
        short = f"{short[:16]}…" if len(short) > 24 and since is not None else short
        print(f"{row['name']:<16}  {row['kind']:<18}  {short:<18}  {when}{only}{void}".rstrip())
    if not rows:
        say.note("nobody can confirm a call yet. Make a key with: interlock keys new NAME")
        say.note("Or let a browser or a passkey confirm: interlock keys enrol NAME")
        named = own_keys.Named(config, node)
        for path in own_keys.own_keys():
            say.note(f"{path.stem} is there already: {own_keys.enrolment(path, named)}")


@keys.command()
def enrol(
    name: Name,
    public: Annotated[
        Path | None,
        typer.Option("--public", metavar="FILE", help="Enrol this public key (PEM or JWK)."),
    ] = None,
    tool: Tools = None,
    caller: CallerName = None,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Let a browser or a passkey confirm calls: prints an address that works once.

    \b
    Examples:
      interlock keys enrol chief
      interlock keys enrol chief --public chief.pub
    """
    from interlock.node.operators import enrolled_key, local_base, page_base
    from interlock.stores.operators import CODE_LASTS, Invitation

    operator_key.checked_name(name)
    meant = running.with_files(config, node)
    store = _store(meant)
    invitation = Invitation(name, tuple(tool or ()), caller or "")
    if public is not None:
        one = enrolled_key(public.read_bytes(), invitation)
        store.add(one)
        print(f"{name} is enrolled with the key {one.id}.")
        return
    now = meant.now()
    scheme = "http" if meant.config.tls is None else "https"
    url = f"{scheme}://{meant.config.listen}" if now is None or now.url is None else now.url
    base = page_base(meant.config, url) or local_base(url)
    code = store.invite(invitation)
    if json:
        say.as_json({"address": f"{base}/enrol", "code": code, "seconds": CODE_LASTS})
        return
    if now is None:
        say.note(f"Note: no node answers at {meant.config.listen}. Start one with: interlock up")
    say.note(
        f"Open this within {int(CODE_LASTS) // 60} minutes, in {name}'s browser; it works once:"
    )
    print(f"{base}/enrol#{code}")
    say.note(f"Or enter the code {code} at {base}/enrol")


@keys.command()
def remove(
    name: Annotated[str, typer.Argument(help="An operator, or the id of one key or passkey.")],
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Take back what an operator enrolled. A running node heeds it at once."""
    gone = _store(running.with_files(config, node)).remove(name)
    for one in gone:
        print(f"{one.name}: the {one.kind} {one.id} counts no more.")
    private = operator_key.keys_dir() / f"{name}.pem"
    if gone and private.exists():
        say.note(f"The private key {private} is still there; delete it if nobody needs it.")
    if not gone:
        say.note(f"nothing of {name} is enrolled.")
        raise typer.Exit(1)


def _tell_where(meant: running.Meant) -> None:
    """Somebody who enrols with a node that does not run may have meant the one that does."""
    hint = "" if meant.now() is not None else running.elsewhere(meant)
    if hint:
        say.note(f"Note: no node answers at {meant.config.listen}, but {hint}")


def _must_be_new(name: str, store: OperatorStore | None, named: own_keys.Named) -> None:
    """Raises InterlockError for a key that is there already: how it is enrolled, if it is not."""
    from interlock.errors import CONFIG, InterlockError

    private = operator_key.keys_dir() / f"{name}.pem"
    if not private.exists():
        return
    message = f"{private} is there already: choose another name, or move it away"
    id = own_keys.thumbprint_of(private)
    if store is not None and id and not any(one.id == id for one in store.all()):
        command = own_keys.enrolment(private, named)
        message += f".\nIt is not enrolled with this node. To do that: {command}"
    else:
        message += " (who signs with it now could not any more)."
    raise InterlockError(CONFIG, message)


def _store(meant: running.Meant) -> OperatorStore:
    """Raises ConfigError."""
    from interlock.node.operators import operators_path
    from interlock.stores.operators import OperatorStore

    return OperatorStore(operators_path(meant.config, os.environ, meant.base_dir))
