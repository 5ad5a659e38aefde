"""`interlock keys`: who may confirm calls of this node, and with what."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli.node_keys import node_keys
from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, key_choice, node_discovery, operator_key, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.trust.operators.chain import DraftEntry, Enrolment
    from interlock.trust.operators.store import OperatorStore, PendingEnrolment

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
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE|NAME",
        help="The enrolled key to sign with. Default at a terminal: the one of yours.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase."),
]
By = Annotated[
    Path | None,
    typer.Option(
        "--by",
        metavar="FILE|NAME",
        help="The enrolled key that confirms it. Default at a terminal: the one of yours.",
    ),
]
ByPassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--by-passphrase-file", metavar="FILE", help="Its first line is the passphrase of --by."
    ),
]
PendingId = Annotated[
    str, typer.Argument(metavar="ID", help="The pending enrolment, or how its id begins.")
]
_CALLERS = {"local": "this machine's own user", "parent": "a parent node"}


@keys.callback()
def _keys() -> None:
    """Make and enrol the keys with which people confirm calls.

    A call that waits is confirmed with an operator's key, a key of a browser, or a passkey. The
    node keeps their public parts only. The first operator enrols without a proof; every further
    one is confirmed by an operator.
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
    by: By = None,
    by_passphrase_file: ByPassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Make a key of your own (Ed25519), and enrol it with the node.

    The first key is enrolled at once. A further one is confirmed with an enrolled key (--by), or
    is pending until an operator runs `interlock keys admit`.

    \b
    Examples:
      interlock keys new chief
      interlock keys new deputy --by chief
      interlock keys new ops --tool 'github.*'
    """
    from interlock.trust.operators.operators import enrolled_key
    from interlock.trust.operators.store import Invitation

    operator_key.check_name(name)
    store = None
    target = (
        node_discovery.find_local_node(config, node)
        if not no_enrol
        else node_discovery.find_node(config, node)
    )
    if not no_enrol:
        store = key_choice.open_operator_store(target)
        _tell_where(target)
    _must_be_new(name, store, target.selector)
    if name in _CALLERS:
        output.print_note(
            f"Warning: {name} is what the node calls {_CALLERS[name]}, and nobody confirms their "
            "own calls: choose another name."
        )
    passphrase = None
    if no_passphrase:
        output.print_note(
            "Warning: the key has no passphrase: whoever reads the file can confirm calls."
        )
    else:
        passphrase = operator_key.read_passphrase(
            passphrase_file, f"A passphrase for the key of {name}", new=True
        )
    signer = None if store is None else _signing_key(store, target, by)
    private, public, pem = operator_key.create_key(name, passphrase)
    pending = None
    if store is not None:
        invitation = Invitation(name, tuple(tool or ()), caller or "")
        try:
            pending = _enrol(store, enrolled_key(pem, invitation), signer, by_passphrase_file)
        except BaseException:
            # A key that nobody was told of is of no use, and in the way of the next attempt.
            operator_key.delete_key_files(private, public)
            raise
    output.print_note(f"private key: {private}")
    if pending is not None:
        _tell_pending(pending, target.selector)
    elif store is not None:
        output.print_note(f"enrolled in:  {store.path}")
    output.print_note("For the config of another node:")
    print(f"approvals:\n  anchors:\n    - name: {name}\n      key: {public}")
    if tool:
        print(f"      tools: [{', '.join(repr(glob) for glob in tool)}]")
    if caller:
        print(f"      caller: {caller}")


@keys.command("list")
def list_keys(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Show whose proofs count: enrolled keys and passkeys, and the anchors of the config."""
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    rows = [
        {
            "name": one.name,
            "kind": one.kind,
            "id": one.id,
            "tools": list(one.tools),
            "caller": one.caller,
            "since": one.created,
            "counts": target.config.approvals.enrolled,
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
        for one in target.config.approvals.anchors
    ]
    rows += [
        {
            "name": one.one.name,
            "kind": f"{one.one.kind} ({'recovery' if one.recovery else 'pending'})",
            "id": one.id,
            "tools": list(one.one.tools),
            "caller": one.one.caller,
            "since": None,
            "counts": False,
        }
        for one in store.pending()
    ]
    if json:
        output.print_json(rows)
        return
    for row in rows:
        since = row["since"]
        when = format_local(since) if isinstance(since, float) else ""
        limits = row["tools"] if isinstance(row["tools"], list) else []
        only = f"  only {', '.join(limits)}" if limits else ""
        void = "" if row["counts"] else "  (does not count: approvals.enrolled is off)"
        if str(row["kind"]).endswith(("(pending)", "(recovery)")):
            admit = target.selector.format_command(f"keys admit {row['id']}")
            void = f"  (does not count yet: {admit})"
        short = str(row["id"])
        short = f"{short[:16]}…" if len(short) > 24 and since is not None else short
        print(f"{row['name']:<16}  {row['kind']:<18}  {short:<18}  {when}{only}{void}".rstrip())
    if not rows:
        named = target.selector
        make = named.format_command("keys new NAME")
        output.print_note(f"nobody can confirm a call yet. Make a key with: {make}")
        output.print_note(
            f"Or let a browser or a passkey confirm: {named.format_command('keys enrol NAME')}"
        )
        for path in key_choice.list_user_keys():
            output.print_note(
                f"{path.stem} is there already: {key_choice.enrolment_command(path, named)}"
            )


@keys.command()
def enrol(
    name: Name,
    public: Annotated[
        Path | None,
        typer.Option("--public", metavar="FILE", help="Enrol this public key (PEM or JWK)."),
    ] = None,
    tool: Tools = None,
    caller: CallerName = None,
    by: By = None,
    by_passphrase_file: ByPassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Let a browser or a passkey confirm calls: prints an address that works once.

    Once there is an operator, what is enrolled there is pending until one confirms it with
    `interlock keys admit`.

    \b
    Examples:
      interlock keys enrol chief
      interlock keys enrol chief --public chief.pub
    """
    from interlock.trust.operators.operators import enrolled_key, local_base, page_base
    from interlock.trust.operators.store import CODE_LASTS, Invitation

    operator_key.check_name(name)
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    invitation = Invitation(name, tuple(tool or ()), caller or "")
    if public is not None:
        one = enrolled_key(public.read_bytes(), invitation)
        pending = _enrol(store, one, _signing_key(store, target, by), by_passphrase_file)
        if pending is not None:
            _tell_pending(pending, target.selector)
        else:
            print(f"{name} is enrolled with the key {one.id}.")
        return
    now = target.fetch_summary()
    scheme = "http" if target.config.tls is None else "https"
    url = f"{scheme}://{target.config.listen}" if now is None or now.url is None else now.url
    base = page_base(target.config, url) or local_base(url)
    code = store.invite(invitation)
    if json:
        output.print_json({"address": f"{base}/enrol", "code": code, "seconds": CODE_LASTS})
        return
    if now is None:
        start = target.selector.up_command
        output.print_note(
            f"Note: no node answers at {target.config.listen}. Start one with: {start}"
        )
    output.print_note(
        f"Open this within {int(CODE_LASTS) // 60} minutes, in {name}'s browser; it works once:"
    )
    print(f"{base}/enrol#{code}")
    output.print_note(f"Or enter the code {code} at {base}/enrol")


@keys.command()
def admit(
    id: PendingId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Confirm a pending enrolment with your key: from then on it can confirm calls.

    \b
    Example:
      interlock keys admit 3f0c0e
    """
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    pending = store.find_pending(id)
    path = _must_have_key(store, target, key)
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody is there to ask: look at it first, then give --yes.")
        _show_pending(pending)
        if not output.confirm("Let it confirm calls from now on?"):
            output.print_note("nothing was decided.")
            raise typer.Exit(output.FAILED)
    draft = store.draft(enrol=[pending.one])
    store.admit(pending.id, draft.entry, _sign(draft, path, passphrase_file))
    print(f"{pending.one.name} is enrolled with the {pending.one.kind} {pending.one.id}.")


@keys.command()
def refuse(
    id: PendingId, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """Refuse a pending enrolment, or a recovery.

    \b
    Example:
      interlock keys refuse 3f0c0e
    """
    store = key_choice.open_operator_store(node_discovery.find_local_node(config, node))
    pending = store.find_pending(id)
    store.refuse(pending.id)
    print(f"refused: {pending.one.name} ({pending.one.kind}) is not enrolled.")


@keys.command()
def recover(
    name: Name,
    public: Annotated[
        Path,
        typer.Option("--public", metavar="FILE", help="The public key (PEM or JWK) to enrol."),
    ],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Enrol a key although no operator can confirm it: all keys were lost.

    As root, for a node that runs as another user, it counts at once. Otherwise it counts after
    `approvals.recovery_delay`, while the node runs; every operator is told, and any may refuse.

    \b
    Examples:
      interlock keys new chief --no-enrol
      interlock keys recover chief --public ~/.config/interlock/keys/chief.pub
    """
    from interlock.errors import CONFIG, InterlockError
    from interlock.trust.operators.operators import enrolled_key
    from interlock.trust.operators.store import Invitation

    operator_key.check_name(name)
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    if not store.chain().operators:
        raise InterlockError(
            CONFIG,
            "No operator is enrolled, so no key can be lost. Enrol the first one: "
            + target.selector.format_command(f"keys new {name}"),
        )
    one = enrolled_key(public.read_bytes(), Invitation(name))
    if os.getuid() == 0 and store.path.parent.stat().st_uid != 0:
        store.recover_as_root(one)
        print(f"{name} is enrolled with the key {one.id}. Every operator is told.")
        return
    pending = store.ask(one, recovery=True)
    delay = target.config.approvals.recovery_delay
    if delay is None:
        output.print_note(
            "approvals.recovery_delay is null: only root can recover. An operator can admit:"
        )
    else:
        hours = f"{delay / 3600:g} h"
        output.print_note(
            f"It counts {hours} after the running node has seen it, unless one refuses it:"
        )
        output.print_note(f"  {target.selector.format_command(f'keys refuse {pending.id}')}")
        output.print_note(
            "Every operator is told. Root need not wait: run the same command as root."
        )
    print(pending.id)


@keys.command()
def remove(
    name: Annotated[str, typer.Argument(help="An operator, or the id of one key or passkey.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Remove an operator, signed with your key. A running node heeds it at once."""
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)

    def sign(draft: DraftEntry) -> str:
        return _sign(draft, _must_have_key(store, target, key), passphrase_file)

    gone = store.remove(name, sign)
    for one in gone:
        print(f"{one.name}: the {one.kind} {one.id} counts no more.")
    private = operator_key.keys_dir() / f"{name}.pem"
    if gone and private.exists():
        output.print_note(
            f"The private key {private} is still there; delete it if nobody needs it."
        )
    if not gone:
        output.print_note(f"nothing of {name} is enrolled.")
        raise typer.Exit(1)


def _signing_key(
    store: OperatorStore, target: node_discovery.TargetNode, given: Path | None
) -> Path | None:
    """The enrolled key that confirms an enrolment. None: nobody has to, or somebody else will.

    A program that nobody watches signs only with a key that was named.
    """
    if not store.chain().operators and not store.roots():
        return None
    if given is not None:
        return operator_key.choose_key(given)
    if not sys.stdin.isatty():
        return None
    found = key_choice.list_enrolling_keys(target, store)
    if len(found) > 1:
        from interlock.errors import CONFIG, InterlockError

        names = ", ".join(path.stem for path in found)
        raise InterlockError(CONFIG, f"several of your keys are enrolled ({names}): choose one.")
    return found[0] if found else None


def _must_have_key(
    store: OperatorStore, target: node_discovery.TargetNode, given: Path | None
) -> Path:
    from interlock.errors import PROOF_INVALID, InterlockError

    path = _signing_key(store, target, given)
    if path is None:
        raise InterlockError(
            PROOF_INVALID, "an operator must confirm that: sign with an enrolled key, --key NAME."
        )
    return path


def _enrol(
    store: OperatorStore, one: Enrolment, signer: Path | None, passphrase_file: Path | None
) -> PendingEnrolment | None:
    """Enrol a key: the first at once, a further one signed. None, or what is pending then."""
    if signer is not None:
        output.print_note(f"An operator confirms it: signing with {signer.stem}.")
        store.add(one, lambda draft: _sign(draft, signer, passphrase_file))
    elif store.chain().operators or store.roots():
        return store.ask(one)
    else:
        store.add(one)
    return None


def _sign(draft: DraftEntry, path: Path, passphrase_file: Path | None) -> str:
    operator_key.check_key_file(path)
    operator_key.warn_if_readable(path)
    key = operator_key.load_key(path, passphrase_file)
    return operator_key.sign_proof(key, now=time.time(), claims=draft.claims)


def _tell_pending(pending: PendingEnrolment, named: node_discovery.NodeSelector) -> None:
    output.print_note("It does not count yet: an operator must confirm it.")
    output.print_note(f"Whoever is one runs: {named.format_command(f'keys admit {pending.id}')}")


def _show_pending(pending: PendingEnrolment) -> None:
    one = pending.one
    output.print_note(f"operator:  {output.sanitize(one.name)}")
    output.print_note(f"{one.kind}:       {one.id}")
    output.print_note(f"tools:     {output.sanitize(', '.join(one.tools)) or 'all'}")
    if one.caller:
        output.print_note(f"caller:    {output.sanitize(one.caller)}")
    output.print_note(f"asked:     {format_local(pending.made)}")
    if pending.recovery:
        output.print_note("It is a recovery: somebody says that all keys were lost.")


def _tell_where(target: node_discovery.TargetNode) -> None:
    """Somebody who enrols with a node that does not run may have target the one that does."""
    hint = "" if target.fetch_summary() is not None else node_discovery.describe_other_nodes(target)
    if hint:
        output.print_note(f"Note: no node answers at {target.config.listen}, but {hint}")


def _must_be_new(
    name: str, store: OperatorStore | None, named: node_discovery.NodeSelector
) -> None:
    """Raises InterlockError for a key that is there already: how it is enrolled, if it is not."""
    from interlock.errors import CONFIG, InterlockError

    private = operator_key.keys_dir() / f"{name}.pem"
    if not private.exists():
        return
    message = f"{private} is there already: choose another name, or move it away"
    id = key_choice.read_thumbprint(private)
    if store is not None and id and not any(one.id == id for one in store.all()):
        command = key_choice.enrolment_command(private, named)
        message += f".\nIt is not enrolled with this node. To do that: {command}"
    else:
        message += " (who signs with it now could not any more)."
    raise InterlockError(CONFIG, message)
