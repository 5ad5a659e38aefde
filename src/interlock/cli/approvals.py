"""`interlock approvals`, `approve` and `refuse`: what waits for a human, and the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.primitives.durations import describe_duration
from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, key_choice, node_discovery, operator_key, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import Json, Key, PassphraseFile

if TYPE_CHECKING:
    from interlock.terminal.approvals_client import ApprovalsClient, PendingApproval

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="The approval; the first 6 characters of its id will do."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reveal = Annotated[
    bool,
    typer.Option("--reveal", help="Show the values of masked arguments (journalled)."),
]
AcceptMasked = Annotated[
    bool,
    typer.Option("--accept-masked", help="Approve without seeing the values of masked arguments."),
]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; kept on record.")]

_SHORTEST_ID = 6
"""With fewer characters a slip of the finger is some other approval."""
_STEPS = ("aql.proceed", "aql.unblock")
"""What waits there is a step of an agent, and its arguments say which."""
_DIRECT = 2
"""A server and its tool: there is no node in between."""
_FAILED = "tool_error"
_HELD_BELOW = "confirmation_required"
_PASSED_ON = "passed_on"
_EFFECTS = {
    "irreversible": "cannot be undone",
    "mutating": "changes something",
    "additive": "adds something",
    "read_only": "only reads",
}


def approvals(
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Show this approval in full. Default: list all."),
    ] = None,
    reveal: Reveal = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing what comes.")] = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show pending approvals.

    \b
    Examples:
      interlock approvals
      interlock approvals 7fGhZ1 --reveal
      interlock approvals --watch
      interlock approvals --json | jq '.approvals[].id'
    """
    from interlock.terminal.approvals_client import ApprovalsClient

    target = node_discovery.find_node(config, node)
    inbox = ApprovalsClient(target)
    if id is not None:
        _check_id(id)
        _show_one(inbox, id, reveal=reveal, json=json)
        return
    if reveal:
        raise typer.BadParameter("--reveal needs the ID of an approval.")
    if watch:
        known: set[str] = set()
        for pending in inbox.watch_pending():
            for one in pending:
                if one.id not in known:
                    print(_as_json(one) if json else _row(one), flush=True)
            for id in known - {one.id for one in pending}:
                output.print_note(f"{id} waits no more.")
            known = {one.id for one in pending}
        output.print_note("the node has stopped.")
        return
    if json:
        output.print_json({"approvals": inbox.list_pending_raw()})
        return
    found = inbox.list_pending()
    for asked in inbox.list_enrolments():
        output.print_note(_enrolment(asked, target.selector))
    for one in found:
        print(_row(one))
    if not found:
        output.print_note("nothing waits.")
    else:
        approve, refuse = map(
            target.selector.format_command, ("approve ID", "refuse ID --reason WHY")
        )
        output.print_note(f"Decide with: {approve}, or {refuse}")


def _show_one(inbox: ApprovalsClient, id: str, *, reveal: bool, json: bool) -> None:
    approval = inbox.find(id)
    if reveal:
        approval = inbox.reveal(approval)
    if json:
        print(_as_json(approval))
    else:
        _show(approval)


def approve(
    id: Id,
    yes: Yes = False,
    reveal: Reveal = False,
    accept_masked: AcceptMasked = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    reason: Reason = "",
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Let a call through that waits: signs with your key, and prints what came of it.

    \b
    Examples:
      interlock approve 7fGhZ1
      interlock approve 7fGhZ1 --yes --key ops --passphrase-file pass.txt
    """
    from interlock.terminal.approvals_client import ApprovalsClient

    _check_id(id)
    target = node_discovery.find_node(config, node)
    inbox = ApprovalsClient(target)
    one = inbox.find(id)
    _must_wait(one)
    path = key_choice.choose_key(key, one, target, here=inbox.is_local(one) and not one.at)
    operator_key.check_key_file(path)
    interactive = not yes
    if interactive and not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to ask: look at it first, then give --yes.")
    if one.masked and not interactive and not (reveal or accept_masked):
        raise typer.BadParameter(
            f"{_masked_names(one)} masked: give --reveal to see the values, or --accept-masked to "
            "approve without seeing them."
        )
    if reveal:
        one = inbox.reveal(one)
    if interactive or reveal:
        _show(one)
    if interactive:
        if one.masked and not (reveal or accept_masked):
            accept_masked = output.confirm(
                f"{_masked_names(one)} masked (--reveal shows the values). Approve without "
                "seeing them?"
            )
            if not accept_masked:
                output.print_note("nothing was decided.")
                raise typer.Exit(output.FAILED)
        if not output.confirm("Let exactly this call through?"):
            output.print_note("nothing was decided.")
            raise typer.Exit(output.FAILED)
    proof = _signed(one, "approve", reason, path, passphrase_file)
    sent = {"proof": proof, **({"accept_masked": True} if one.masked else {})}
    _tell(inbox.decide(one, sent), json=json)


def refuse(
    id: Id,
    reason: Reason = "",
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Refuse a call that waits. The reason is told to whoever asked.

    On the node's own machine no key is needed for that.

    \b
    Example:
      interlock refuse 7fGhZ1 --reason "not on a Friday"
    """
    from interlock.terminal.approvals_client import ApprovalsClient

    _check_id(id)
    inbox = ApprovalsClient(node_discovery.find_node(config, node))
    one = inbox.find(id)
    _must_wait(one)
    sent: dict[str, Any] = {"refuse": True, "reason": reason}
    if key is not None or one.at:
        sent = {
            "proof": _signed(one, "refuse", reason, operator_key.choose_key(key), passphrase_file)
        }
    _tell(inbox.decide(one, sent), json=json)


def _signed(
    one: PendingApproval, decision: str, reason: str, path: Path, passphrase_file: Path | None
) -> str:
    operator_key.warn_if_readable(path)
    claims = {
        "aud": one.aud,
        "jti": one.id,
        "args_sha256": one.args_sha256,
        "decision": decision,
        **({"reason": reason} if reason else {}),
    }
    return operator_key.sign_proof(
        operator_key.load_key(path, passphrase_file), now=one.now, claims=claims
    )


def _check_id(id: str) -> None:
    if not id.strip():
        raise typer.BadParameter("there is no id: `interlock approvals` shows what waits.")
    if len(id) < _SHORTEST_ID:
        raise typer.BadParameter(
            f"{id} is too short: give at least {_SHORTEST_ID} characters of the id."
        )


def _must_wait(one: PendingApproval) -> None:
    from interlock.errors import ALREADY_DECIDED, InterlockError

    if one.state != "pending":
        why = f" {one.note}" if one.note else ""
        raise InterlockError(ALREADY_DECIDED, f"it does not wait any more: {one.state}.{why}")


def _row(one: PendingApproval) -> str:
    left = describe_duration(one.seconds_left)
    words = _line(_step(one) or one.arguments_text)
    words = words if len(words) <= 100 else f"{words[:99]}…"
    effect = _EFFECTS.get(one.effect, one.effect)
    at = f"  held by the node {_line(one.at)} below, which says:" if one.at else ""
    return (
        f"{one.id}  {left} left{at}\n  {_line(one.tool)}  ({effect})\n"
        f"  asked by {_who(one)}{_proposed(one, ', proposed ')}\n  {words}"
    )


def _enrolment(asked: dict[str, Any], named: node_discovery.NodeSelector) -> str:
    """Who wants to become an operator, and what to do about it."""
    who, id = f"{_line(str(asked['name']))} ({asked['kind']})", asked["id"]
    if not asked["recovery"]:
        return (
            f"Enrolment pending: {who}. Confirm it with: {named.format_command(f'keys admit {id}')}"
        )
    ends = asked["ends"]
    when = "" if ends is None else f" at {format_local(ends)}"
    return (
        f"Recovery: {who} becomes an operator{when} without the proof of another. "
        f"Refuse it with: {named.format_command(f'keys refuse {id}')}"
    )


def _proposed(one: PendingApproval, before: str) -> str:
    """Where it was proposed: everybody there will see what comes of it."""
    if one.proposal is None:
        return ""
    where, by = (_line(one.proposal.get(key, "?")) for key in ("topic", "by"))
    return f"{before}in the topic {where} by {by}, where everybody sees the outcome"


def _step(one: PendingApproval) -> str:
    """What an agent wants to do, where it is that which waits."""
    if one.tool not in _STEPS:
        return ""
    import msgspec

    try:
        said = msgspec.json.decode(one.arguments_text, type=dict[str, Any])
    except msgspec.DecodeError:
        return ""
    hint = str(said.get("hint") or "")
    return f"{hint} · says the agent {said.get('element_name', '')}" if hint else ""


def _who(one: PendingApproval) -> str:
    name, above = one.caller.get("name", ""), one.caller.get("above", "")
    return _line(f"{above}, through {name}" if above else name)


def _line(text: str) -> str:
    """What others wrote, in one line: it cannot look like another line of ours."""
    return " ".join(output.sanitize(text).split())


def _block(text: str) -> str:
    """The same in several lines, each marked as theirs."""
    return "\n".join(f"  │ {line}" for line in output.sanitize(text).splitlines())


def _show(one: PendingApproval) -> None:
    """All there is to know before one decides. On stderr: the outcome is the result."""
    if one.at:
        output.print_note(
            f"held by:   the node {_line(one.at)} below, which says all of this itself"
        )
    output.print_note(f"tool:      {_line(one.tool)}  ({_EFFECTS.get(one.effect, one.effect)})")
    if one.description:
        output.print_note(f"it says:\n{_block(one.description)}")
    output.print_note(f"server:    {_line(one.server)}")
    if len(one.route) > _DIRECT:
        output.print_note(f"route:     {_line(' › '.join(one.route))}")
    output.print_note(f"asked by:  {_who(one)}")
    if one.proposal is not None:
        output.print_note(f"proposed:  {_proposed(one, '')}")
    why = one.reason or (f"rule {one.rule}" if one.rule else "")
    if why:
        output.print_note(f"it waits:  {_line(why)}")
    output.print_note(f"time left: {describe_duration(one.seconds_left)}")
    output.print_note(f"digest:    {one.args_sha256}")
    output.print_note(f"arguments:\n{_block(one.arguments_text)}")
    if one.meta_text:
        output.print_note(f"and beside them (_meta):\n{_block(one.meta_text)}")
    if one.masked:
        state = "revealed" if one.revealed else "masked"
        output.print_note(f"{state}:    {_line(', '.join(one.masked))}")


def _masked_names(approval: PendingApproval) -> str:
    """`password is`, `password, pin are`: which arguments are masked."""
    names = ", ".join(_line(one.removeprefix("/arguments/")) for one in approval.masked[:5])
    if len(approval.masked) > 5:
        names += f" and {len(approval.masked) - 5} more"
    return f"{names} {'is' if len(approval.masked) == 1 else 'are'}"


def _as_json(one: PendingApproval) -> str:
    import msgspec

    return msgspec.json.encode(one).decode()


def _tell(body: bytes, *, json: bool) -> None:
    """What became of it; the exit code says whether the call succeeded."""
    import msgspec

    from interlock.terminal.approvals_client import PendingApproval

    told = msgspec.json.decode(body, type=PendingApproval)
    if json:
        output.print_json(msgspec.json.decode(body))
    else:
        _tell_person(told)
    if told.state == _PASSED_ON:
        if not _refused_below(told) and msgspec.json.decode(told.result).get("isError"):
            raise typer.Exit(output.FAILED)
    elif told.state not in ("done", "refused") or told.error is not None or told.outcome == _FAILED:
        raise typer.Exit(output.FAILED)


def _tell_person(told: PendingApproval) -> None:
    from interlock.terminal.results import print_result

    by = f" by {told.by}" if told.by else ""
    if told.state == "refused" or _refused_below(told):
        print(f"refused{by}.")
    elif told.state == _PASSED_ON:
        output.print_note(f"passed on to the node {_line(told.at)}, which holds it.")
        print_result(bytes(told.result))
    elif told.outcome == _HELD_BELOW:
        output.print_note(f"approved{by}.")
        print(_gate_below(bytes(told.result)))
    else:
        output.print_note(f"approved{by}: {told.outcome or told.state}")
        if told.error is not None:
            output.print_problem(output.sanitize(told.error["message"]))
        elif bytes(told.result) != b"null":
            print_result(bytes(told.result))
        elif told.note:
            output.print_note(output.sanitize(told.note))


def _refused_below(told: PendingApproval) -> bool:
    """Whether a node below, which was given the proof, says that the call is refused."""
    import msgspec

    if told.state != _PASSED_ON:
        return False
    result = msgspec.json.decode(told.result)
    return "content" not in result and result.get("status") == "refused"


def _gate_below(result: bytes) -> str:
    """A node below wants a proof of its own: what it holds, and what to do there."""
    import shlex

    import msgspec

    about = msgspec.json.decode(result).get("structuredContent") or {}
    # The words of another node: they stand in a command that somebody may paste.
    id, until, page = (
        _line(str(about.get(name, ""))) for name in ("confirmation_id", "expires_at", "url")
    )
    return (
        "A node below has a gate of its own and holds the call"
        + (f" until {until}" if until else "")
        + f". Who confirms there runs, where that node is: interlock approve {shlex.quote(id)}"
        + (f", or opens {page}" if page else "")
    )
