"""`interlock keys`: the operators of a node and the keys with which they approve calls."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Name = Annotated[str, typer.Argument(help="Name of the operator. The journal shows it.")]
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", metavar="GLOB", help="Allow approvals of these tools only. Can be repeated."
    ),
]
CallerName = Annotated[
    str | None,
    typer.Option(
        "--caller",
        metavar="NAME",
        help="Name of the operator as a caller: callers cannot approve their own calls.",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE|NAME",
        help="Sign with this enrolled key. Default at a terminal: your only enrolled key.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help="Read the passphrase from this file's first line."
    ),
]
By = Annotated[
    Path | None,
    typer.Option(
        "--by",
        metavar="FILE|NAME",
        help="Confirm with this enrolled key. Default at a terminal: your only enrolled key.",
    ),
]
ByPassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--by-passphrase-file",
        metavar="FILE",
        help="Read the passphrase of --by from this file's first line.",
    ),
]
PendingId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the pending enrolment, or its beginning.")
]
_RESERVED_NAMES = {"local": "the user of this machine", "parent": "a parent node"}


@keys.callback()
def _keys() -> None:
    """Create and enrol the keys with which operators approve calls.

    An operator approves a pending call with a key file, a browser key or a passkey. The node stores
    public keys only. The first operator enrols without a proof. An operator must confirm every
    further enrolment.
    """


@keys.command()
def new(
    name: Name,
    tool: Tools = None,
    caller: CallerName = None,
    no_passphrase: Annotated[
        bool,
        typer.Option(
            "--no-passphrase", help="Create an unprotected key: any reader of the file can sign."
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    no_enrol: Annotated[
        bool, typer.Option("--no-enrol", help="Create the key without enrolling it here.")
    ] = False,
    by: By = None,
    by_passphrase_file: ByPassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Create a key for an operator (Ed25519), and enrol it with the node.

    The first key is enrolled at once. Confirm a further key with an enrolled key (--by). Otherwise
    it is pending until an operator runs `interlock keys approve`.

    \b
    Examples:
      interlock keys new chief
      interlock keys new deputy --by chief
      interlock keys new ops --tool 'github.*'
    """
    from interlock.trust.operators.operators import enrol_key
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
        _warn_if_other_node(target)
    _require_new_key(name, store, target.selector)
    if name in _RESERVED_NAMES:
        output.print_note(
            f"Warning: {name} is the caller name of {_RESERVED_NAMES[name]}, and callers cannot "
            "approve "
            "their own calls. Choose another name."
        )
    passphrase = None
    if no_passphrase:
        output.print_note(
            "Warning: the key has no passphrase. Any reader of the file can approve calls."
        )
    else:
        passphrase = operator_key.read_passphrase(
            passphrase_file, f"New passphrase for the key of {name}", new=True
        )
    signer = None if store is None else _choose_signing_key(store, target, by)
    private_path, public, pem = operator_key.create_key(name, passphrase)
    pending = None
    if store is not None:
        invitation = Invitation(name, tuple(tool or ()), caller or "")
        try:
            pending = _enrol(store, enrol_key(pem, invitation), signer, by_passphrase_file)
        except BaseException:
            # A key that is not enrolled would block the next attempt.
            operator_key.delete_key_files(private_path, public)
            raise
    output.print_note(f"private key: {private_path}")
    if pending is not None:
        _print_pending_hint(pending, target.selector)
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
    """List the operators: enrolled keys and passkeys, pending enrolments, anchors of the config."""
    target = node_discovery.find_local_node(config, node)
    _warn_if_other_node(target)
    store = key_choice.open_operator_store(target)
    rows = [
        {
            "name": operator.name,
            "kind": operator.kind,
            "id": operator.id,
            "tools": list(operator.tools),
            "caller": operator.caller,
            "since": operator.created,
            "counts": target.config.approvals.enrolled,
        }
        for operator in store.all()
    ]
    rows += [
        {
            "name": operator.name,
            "kind": f"{operator.kind} (config)",
            "id": operator.key or "",
            "tools": list(operator.tools),
            "caller": operator.caller or "",
            "since": None,
            "counts": True,
        }
        for operator in target.config.approvals.anchors
    ]
    rows += [
        {
            "name": operator.enrolment.name,
            "kind": f"{operator.enrolment.kind} ({'recovery' if operator.recovery else 'pending'})",
            "id": operator.id,
            "tools": list(operator.enrolment.tools),
            "caller": operator.enrolment.caller,
            "since": None,
            "counts": False,
        }
        for operator in store.pending()
    ]
    if json:
        output.print_json(rows)
        return
    for row in rows:
        since = row["since"]
        created_text = format_local(since) if isinstance(since, float) else ""
        tool_globs = row["tools"] if isinstance(row["tools"], list) else []
        limit_text = f"  only {', '.join(tool_globs)}" if tool_globs else ""
        inactive_text = "" if row["counts"] else "  (inactive: approvals.enrolled is off)"
        if str(row["kind"]).endswith(("(pending)", "(recovery)")):
            approve = target.selector.format_command(f"keys approve {row['id']}")
            inactive_text = f"  (not active yet: `{approve}`)"
        short_id = str(row["id"])
        short_id = f"{short_id[:16]}…" if len(short_id) > 24 and since is not None else short_id
        columns = f"{row['name']:<16}  {row['kind']:<18}  {short_id:<18}  "
        print(f"{columns}{created_text}{limit_text}{inactive_text}".rstrip())
    if not rows:
        selector = target.selector
        create_command = selector.format_command("keys new NAME")
        output.print_note(f"No operator can approve calls yet. Create a key: `{create_command}`")
        output.print_note(
            f"Or enrol a browser or a passkey: `{selector.format_command('keys enrol NAME')}`"
        )
        for path in key_choice.list_user_keys():
            output.print_note(
                f"Or enrol your key {path.stem}: `{key_choice.enrolment_command(path, selector)}`"
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
    """Enrol a browser or a passkey as an operator. Prints an address that works once.

    With --public, enrol a public key file instead. If the node has an operator, the enrolment is
    pending until an operator runs `interlock keys approve`.

    \b
    Examples:
      interlock keys enrol chief
      interlock keys enrol chief --public chief.pub
    """
    from interlock.trust.operators.operators import enrol_key, local_base, page_base
    from interlock.trust.operators.store import CODE_SECONDS, Invitation

    operator_key.check_name(name)
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    invitation = Invitation(name, tuple(tool or ()), caller or "")
    if public is not None:
        enrolment = enrol_key(public.read_bytes(), invitation)
        pending = _enrol(
            store, enrolment, _choose_signing_key(store, target, by), by_passphrase_file
        )
        if pending is not None:
            _print_pending_hint(pending, target.selector)
        else:
            print(f"{name} is enrolled with the key {enrolment.id}.")
        return
    summary = target.fetch_summary()
    scheme = "http" if target.config.tls is None else "https"
    url = (
        f"{scheme}://{target.config.listen}"
        if summary is None or summary.url is None
        else summary.url
    )
    base = page_base(target.config, url) or local_base(url)
    code = store.invite(invitation)
    if json:
        output.print_json({"address": f"{base}/enrol", "code": code, "seconds": CODE_SECONDS})
        return
    if summary is None:
        up_command = target.selector.up_command
        output.print_note(
            f"Note: no node is running at {target.config.listen}. Start it: `{up_command}`"
        )
    output.print_note(
        f"Open this address in {name}'s browser within {int(CODE_SECONDS) // 60} minutes. "
        "It works once:"
    )
    print(f"{base}/enrol#{code}")
    output.print_note(f"Or open {base}/enrol and enter the code {code}")


@keys.command()
def approve(
    id: PendingId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Approve a pending enrolment with your key. The new key can then approve calls.

    \b
    Example:
      interlock keys approve 3f0c0e
    """
    target = node_discovery.find_local_node(config, node)
    _warn_if_other_node(target)
    store = key_choice.open_operator_store(target)
    pending = _find_pending(store, id, target.selector)
    path = _require_signing_key(store, target, key)
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "Cannot ask for a confirmation: stdin is not a terminal. "
                f"Look at the enrolment (`{target.selector.format_command('keys list')}`), "
                "then add --yes."
            )
        _print_pending_enrolment(pending)
        if not output.confirm("Allow this key to approve calls?"):
            output.print_note("No decision was made.")
            raise typer.Exit(output.FAILED)
    draft = store.draft(enrol=[pending.enrolment])
    store.admit(pending.id, draft.entry, _sign(draft, path, passphrase_file))
    print(
        f"{pending.enrolment.name} is enrolled with the {pending.enrolment.kind} "
        f"{pending.enrolment.id}."
    )


@keys.command()
def reject(
    id: PendingId, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """Reject a pending enrolment or a recovery.

    \b
    Example:
      interlock keys reject 3f0c0e
    """
    target = node_discovery.find_local_node(config, node)
    _warn_if_other_node(target)
    store = key_choice.open_operator_store(target)
    pending = _find_pending(store, id, target.selector)
    store.reject(pending.id)
    print(f"Rejected: {pending.enrolment.name} ({pending.enrolment.kind}) is not enrolled.")


@keys.command()
def recover(
    name: Name,
    public: Annotated[
        Path,
        typer.Option("--public", metavar="FILE", help="Enrol this public key (PEM or JWK)."),
    ],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Enrol a key without the confirmation of an operator, because all keys were lost.

    If you are root and the node runs as another user, the key is active at once. Otherwise it is
    active after `approvals.recovery_delay`, while the node runs. Every operator is notified and can
    reject it.

    \b
    Examples:
      interlock keys new chief --no-enrol
      interlock keys recover chief --public ~/.config/interlock/keys/chief.pub
    """
    from interlock.errors import CONFIG, InterlockError
    from interlock.trust.operators.operators import enrol_key
    from interlock.trust.operators.store import Invitation

    operator_key.check_name(name)
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)
    if not store.chain().operators:
        raise InterlockError(
            CONFIG,
            "No operator is enrolled, so no key can be lost. Enrol the first one: "
            f"`{target.selector.format_command(f'keys new {name}')}`",
        )
    enrolment = enrol_key(public.read_bytes(), Invitation(name))
    if os.getuid() == 0 and store.path.parent.stat().st_uid != 0:
        store.recover_as_root(enrolment)
        print(f"{name} is enrolled with the key {enrolment.id}. Every operator is notified.")
        return
    pending = store.add_pending(enrolment, recovery=True)
    delay = target.config.approvals.recovery_delay
    if delay is None:
        output.print_note(
            "approvals.recovery_delay is null, so only root can recover. An operator can approve:"
        )
    else:
        hours = f"{delay / 3600:g} h"
        output.print_note(
            f"The key is active {hours} after the running node has seen it. An operator can reject:"
        )
        output.print_note(f"  {target.selector.format_command(f'keys reject {pending.id}')}")
        output.print_note(
            "Every operator is notified. To skip the delay, run the same command as root."
        )
    print(pending.id)


@keys.command()
def remove(
    name: Annotated[
        str, typer.Argument(help="Name of the operator, or the id of one key or passkey.")
    ],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Remove an operator. Signs with your key. A running node applies it at once.

    \b
    Example:
      interlock keys remove deputy
    """
    target = node_discovery.find_local_node(config, node)
    store = key_choice.open_operator_store(target)

    def sign(draft: DraftEntry) -> str:
        return _sign(draft, _require_signing_key(store, target, key), passphrase_file)

    removed_operators = store.remove(name, sign)
    for operator in removed_operators:
        print(f"{operator.name}: the {operator.kind} {operator.id} is removed.")
    private_path = operator_key.keys_dir() / f"{name}.pem"
    if removed_operators and private_path.exists():
        output.print_note(
            f"The private key file {private_path} still exists. Delete it if it is not needed."
        )
    if not removed_operators:
        output.print_note(
            f"No key of {name} is enrolled. List the operators: "
            f"`{target.selector.format_command('keys list')}`"
        )
        raise typer.Exit(1)


def _find_pending(
    store: OperatorStore, id: str, selector: node_discovery.NodeSelector
) -> PendingEnrolment:
    """Return the pending enrolment whose id begins with `id`. Raises InterlockError."""
    from interlock.errors import InterlockError

    try:
        return store.find_pending(id)
    except InterlockError as error:
        # The store does not know how the user selected the node.
        error.message = error.message.replace(
            "`interlock keys list`", f"`{selector.format_command('keys list')}`"
        )
        raise


def _choose_signing_key(
    store: OperatorStore, target: node_discovery.TargetNode, key_path: Path | None
) -> Path | None:
    """Choose the enrolled key that confirms an enrolment.

    None: no confirmation is needed, or another operator must confirm. Without a terminal, only a
    named key is used.
    """
    if not store.chain().operators and not store.roots():
        return None
    if key_path is not None:
        return operator_key.choose_key(key_path)
    if not sys.stdin.isatty():
        return None
    key_paths = key_choice.list_enrolling_keys(target, store)
    if len(key_paths) > 1:
        from interlock.errors import CONFIG, InterlockError

        names = ", ".join(path.stem for path in key_paths)
        raise InterlockError(
            CONFIG, f"Several of your keys are enrolled ({names}). Choose one with --by or --key."
        )
    return key_paths[0] if key_paths else None


def _require_signing_key(
    store: OperatorStore, target: node_discovery.TargetNode, key_path: Path | None
) -> Path:
    from interlock.errors import PROOF_INVALID, InterlockError

    path = _choose_signing_key(store, target, key_path)
    if path is None:
        raise InterlockError(
            PROOF_INVALID, "An operator must confirm this. Sign with an enrolled key: --key NAME"
        )
    return path


def _enrol(
    store: OperatorStore, enrolment: Enrolment, signer: Path | None, passphrase_file: Path | None
) -> PendingEnrolment | None:
    """Enrol a key: the first at once, a further one with a signature.

    Returns the pending enrolment, or None if the key is enrolled.
    """
    if signer is not None:
        output.print_note(f"Confirming the enrolment with the key {signer.stem}.")
        store.add(enrolment, lambda draft: _sign(draft, signer, passphrase_file))
    elif store.chain().operators or store.roots():
        return store.add_pending(enrolment)
    else:
        store.add(enrolment)
    return None


def _sign(draft: DraftEntry, path: Path, passphrase_file: Path | None) -> str:
    operator_key.check_key_file(path)
    operator_key.warn_if_readable(path)
    key = operator_key.load_key(path, passphrase_file)
    return operator_key.sign_proof(key, now=time.time(), claims=draft.claims)


def _print_pending_hint(pending: PendingEnrolment, selector: node_discovery.NodeSelector) -> None:
    output.print_note("The key is not active yet. An operator must approve the enrolment:")
    output.print_note(f"  {selector.format_command(f'keys approve {pending.id}')}")


def _print_pending_enrolment(pending: PendingEnrolment) -> None:
    enrolment = pending.enrolment
    output.print_note(f"operator:  {output.sanitize(enrolment.name)}")
    output.print_note(f"{enrolment.kind}:       {enrolment.id}")
    output.print_note(f"tools:     {output.sanitize(', '.join(enrolment.tools)) or 'all'}")
    if enrolment.caller:
        output.print_note(f"caller:    {output.sanitize(enrolment.caller)}")
    output.print_note(f"requested: {format_local(pending.made)}")
    if pending.recovery:
        output.print_note("This is a recovery: the requester says that all keys were lost.")


def _warn_if_other_node(target: node_discovery.TargetNode) -> None:
    """Print a note if the target node is stopped and another node is running: the user may have
    meant that one."""
    hint = "" if target.fetch_summary() is not None else node_discovery.describe_other_nodes(target)
    if hint:
        output.print_note(f"Note: no node is running at {target.config.listen}, but {hint}")


def _require_new_key(
    name: str, store: OperatorStore | None, selector: node_discovery.NodeSelector
) -> None:
    """Check that there is no key file with this name.

    Raises InterlockError, with the command that enrols an existing key if it is not enrolled.
    """
    from interlock.errors import CONFIG, InterlockError

    private_path = operator_key.keys_dir() / f"{name}.pem"
    if not private_path.exists():
        return
    message = f"{private_path} exists. Choose another name, or move the file away"
    id = key_choice.read_thumbprint(private_path)
    if store is not None and id and not any(operator.id == id for operator in store.all()):
        command = key_choice.enrolment_command(private_path, selector)
        message += f".\nThe key is not enrolled with this node. Enrol it: `{command}`"
    else:
        message += " (programs that sign with it then fail)."
    raise InterlockError(CONFIG, message)
