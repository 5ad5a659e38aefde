"""`interlock approvals`, `approve` and `reject`: pending approvals and their decisions."""

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
    typer.Argument(metavar="ID", help="Id of the approval. The first 6 characters are sufficient."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Reveal = Annotated[
    bool,
    typer.Option("--reveal", help="Show the values of masked arguments. The journal records this."),
]
AcceptMasked = Annotated[
    bool,
    typer.Option("--accept-masked", help="Approve without seeing the values of masked arguments."),
]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Record the reason for the decision.")]

_MIN_ID_LENGTH = 6
"""With fewer characters, a typing error could select another approval."""
_AGENT_STEP_TOOLS = ("aql.proceed", "aql.unblock")
"""Operations whose pending call is a step of an agent. The arguments describe the step."""
_DIRECT_ROUTE_LENGTH = 2
"""The route of a tool at a direct upstream: server and tool, without another node."""
_TOOL_ERROR = "tool_error"
_PENDING_AT_CHILD = "confirmation_required"
_PASSED_ON_STATE = "passed_on"
_VOID_STATE = "void"
_DEFAULT_SELECTOR = node_discovery.NodeSelector()
_EFFECT_TEXTS = {
    "irreversible": "cannot be undone",
    "mutating": "changes something",
    "additive": "adds something",
    "read_only": "only reads",
}


def approvals(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Show all details of this approval. Default: list all."
        ),
    ] = None,
    reveal: Reveal = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep running and show new approvals.")
    ] = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """List the calls that wait for an approval.

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
        _print_one(inbox, id, reveal=reveal, json=json)
        return
    if reveal:
        raise typer.BadParameter("--reveal needs the ID of an approval.")
    if watch:
        known_ids: set[str] = set()
        for pending in inbox.watch_pending():
            for approval in pending:
                if approval.id not in known_ids:
                    print(_as_json(approval) if json else _format_row(approval), flush=True)
            for id in known_ids - {approval.id for approval in pending}:
                output.print_note(f"{id} is no longer pending.")
            known_ids = {approval.id for approval in pending}
        output.print_note("The node has stopped.")
        return
    if json:
        output.print_json({"approvals": inbox.list_pending_raw()})
        return
    pending = inbox.list_pending()
    for enrolment in inbox.list_enrolments():
        output.print_note(_format_enrolment(enrolment, target.selector))
    for approval in pending:
        print(_format_row(approval))
    if not pending:
        output.print_note("No pending approvals.")
    else:
        approve, reject = map(
            target.selector.format_command, ("approve ID", "reject ID --reason WHY")
        )
        output.print_note(f"Decide: `{approve}`, or `{reject}`")


def _print_one(inbox: ApprovalsClient, id: str, *, reveal: bool, json: bool) -> None:
    approval = inbox.find(id)
    if reveal:
        approval = inbox.reveal(approval)
    if json:
        print(_as_json(approval))
    else:
        _print_details(approval)


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
    """Approve a pending call, run it, and print its result. Signs with your key.

    \b
    Examples:
      interlock approve 7fGhZ1
      interlock approve 7fGhZ1 --yes --key ops --passphrase-file pass.txt
    """
    from interlock.terminal.approvals_client import ApprovalsClient

    _check_id(id)
    target = node_discovery.find_node(config, node)
    inbox = ApprovalsClient(target)
    approval = inbox.find(id)
    _require_pending(approval)
    key_path = key_choice.choose_key(
        key, approval, target, is_local=inbox.is_local(approval) and not approval.at
    )
    operator_key.check_key_file(key_path)
    interactive = not yes
    if interactive and not sys.stdin.isatty():
        raise typer.BadParameter(
            "Cannot ask for a confirmation: stdin is not a terminal. "
            f"Look at the call (`{target.selector.format_command(f'approvals {id}')}`), then add "
            "--yes."
        )
    if approval.masked and not interactive and not (reveal or accept_masked):
        raise typer.BadParameter(
            f"{_format_masked_names(approval)} masked. Add --reveal to see the values, or "
            "--accept-masked to approve without seeing them."
        )
    if reveal:
        approval = inbox.reveal(approval)
    if interactive or reveal:
        _print_details(approval)
    if interactive:
        if approval.masked and not (reveal or accept_masked):
            accept_masked = output.confirm(
                f"{_format_masked_names(approval)} masked (--reveal shows the values). Approve "
                "without seeing them?"
            )
            if not accept_masked:
                output.print_note("No decision was made.")
                raise typer.Exit(output.FAILED)
        if not output.confirm("Approve this call?"):
            output.print_note("No decision was made.")
            raise typer.Exit(output.FAILED)
    proof = _sign_decision(approval, "approve", reason, key_path, passphrase_file)
    payload = {"proof": proof, **({"accept_masked": True} if approval.masked else {})}
    _print_decision(inbox.decide(approval, payload), json=json, selector=target.selector)


def reject(
    id: Id,
    reason: Reason = "",
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Reject a pending call. The caller gets the reason.

    No key is needed on the machine of the node.

    \b
    Example:
      interlock reject 7fGhZ1 --reason "not on a Friday"
    """
    from interlock.terminal.approvals_client import ApprovalsClient

    _check_id(id)
    target = node_discovery.find_node(config, node)
    inbox = ApprovalsClient(target)
    approval = inbox.find(id)
    _require_pending(approval)
    payload: dict[str, Any] = {"refuse": True, "reason": reason}
    if key is not None or approval.at:
        payload = {
            "proof": _sign_decision(
                approval,
                "refuse",
                reason,
                operator_key.choose_key(key, target.selector),
                passphrase_file,
            )
        }
    _print_decision(inbox.decide(approval, payload), json=json, selector=target.selector)


def _sign_decision(
    approval: PendingApproval, decision: str, reason: str, path: Path, passphrase_file: Path | None
) -> str:
    operator_key.warn_if_readable(path)
    claims = {
        "aud": approval.aud,
        "jti": approval.id,
        "args_sha256": approval.args_sha256,
        "decision": decision,
        **({"reason": reason} if reason else {}),
    }
    return operator_key.sign_proof(
        operator_key.load_key(path, passphrase_file), now=approval.now, claims=claims
    )


def _check_id(id: str) -> None:
    if not id.strip():
        raise typer.BadParameter("The id is empty. List the ids: `interlock approvals`")
    if len(id) < _MIN_ID_LENGTH:
        raise typer.BadParameter(
            f"{id} is too short. Enter at least {_MIN_ID_LENGTH} characters of the id."
        )


def _require_pending(approval: PendingApproval) -> None:
    from interlock.errors import ALREADY_DECIDED, InterlockError

    if approval.state != "pending":
        note = f" {approval.note}" if approval.note else ""
        raise InterlockError(
            ALREADY_DECIDED, f"The call is no longer pending. Its state is {approval.state}.{note}"
        )


def _format_row(approval: PendingApproval) -> str:
    time_left = describe_duration(approval.seconds_left)
    summary = _one_line(_agent_step(approval) or approval.arguments_text)
    summary = summary if len(summary) <= 100 else f"{summary[:99]}…"
    effect = _EFFECT_TEXTS.get(approval.effect, approval.effect)
    child_text = (
        f"  pending at the child node {_one_line(approval.at)}, which reports:"
        if approval.at
        else ""
    )
    return (
        f"{approval.id}  {time_left} left{child_text}\n  {_one_line(approval.tool)}  ({effect})\n"
        f"  called by {_format_caller(approval)}{_format_proposal(approval, ', proposed ')}\n  "
        f"{summary}"
    )


def _format_enrolment(enrolment: dict[str, Any], selector: node_discovery.NodeSelector) -> str:
    """Format a pending enrolment of an operator, with the command that decides it."""
    operator, id = f"{_one_line(str(enrolment['name']))} ({enrolment['kind']})", enrolment["id"]
    if not enrolment["recovery"]:
        approve = selector.format_command(f"keys approve {id}")
        return f"Enrolment pending: {operator}. Approve it: `{approve}`"
    count_time = enrolment["ends"]
    at_text = "" if count_time is None else f" at {format_local(count_time)}"
    return (
        f"Recovery: {operator} becomes an operator{at_text} without a proof of another operator. "
        f"Reject it: `{selector.format_command(f'keys reject {id}')}`"
    )


def _format_proposal(approval: PendingApproval, prefix: str) -> str:
    """Format the topic and the author of a proposal. All participants will see the outcome."""
    if approval.proposal is None:
        return ""
    topic, author = (_one_line(approval.proposal.get(key, "?")) for key in ("topic", "by"))
    return f"{prefix}in the topic {topic} by {author}. All participants see the outcome"


def _agent_step(approval: PendingApproval) -> str:
    """Return the hint of an agent's step, or nothing if the call is not such a step."""
    if approval.tool not in _AGENT_STEP_TOOLS:
        return ""
    import msgspec

    try:
        arguments = msgspec.json.decode(approval.arguments_text, type=dict[str, Any])
    except msgspec.DecodeError:
        return ""
    hint = str(arguments.get("hint") or "")
    return f"{hint} · reported by the agent {arguments.get('element_name', '')}" if hint else ""


def _format_caller(approval: PendingApproval) -> str:
    name, parent_caller = approval.caller.get("name", ""), approval.caller.get("above", "")
    return _one_line(f"{parent_caller}, through {name}" if parent_caller else name)


def _one_line(text: str) -> str:
    """Return untrusted text in one line, so that it cannot imitate a line of Interlock."""
    return " ".join(output.sanitize(text).split())


def _quote_block(text: str) -> str:
    """Return untrusted text in several lines, each marked as a quote."""
    return "\n".join(f"  │ {line}" for line in output.sanitize(text).splitlines())


def _print_details(approval: PendingApproval) -> None:
    """Print all details of an approval on stderr. The result of the command is the outcome."""
    if approval.at:
        output.print_note(
            f"node:      pending at the child node {_one_line(approval.at)}, which reports all "
            "of this"
        )
    output.print_note(
        f"tool:      {_one_line(approval.tool)}  "
        f"({_EFFECT_TEXTS.get(approval.effect, approval.effect)})"
    )
    if approval.description:
        output.print_note(f"description of the tool:\n{_quote_block(approval.description)}")
    output.print_note(f"server:    {_one_line(approval.server)}")
    if len(approval.route) > _DIRECT_ROUTE_LENGTH:
        output.print_note(f"route:     {_one_line(' › '.join(approval.route))}")
    output.print_note(f"caller:    {_format_caller(approval)}")
    if approval.proposal is not None:
        output.print_note(f"proposed:  {_format_proposal(approval, '')}")
    reason = approval.reason or (f"rule {approval.rule}" if approval.rule else "")
    if reason:
        output.print_note(f"reason:    {_one_line(reason)}")
    output.print_note(f"time left: {describe_duration(approval.seconds_left)}")
    output.print_note(f"digest:    {approval.args_sha256}")
    output.print_note(f"arguments:\n{_quote_block(approval.arguments_text)}")
    if approval.meta_text:
        output.print_note(f"_meta, sent with the arguments:\n{_quote_block(approval.meta_text)}")
    if approval.masked:
        state = "revealed" if approval.revealed else "masked"
        output.print_note(f"{state}:    {_one_line(', '.join(approval.masked))}")


def _format_masked_names(approval: PendingApproval) -> str:
    """Format the names of the masked arguments: `password is`, `password, pin are`."""
    names = ", ".join(_one_line(path.removeprefix("/arguments/")) for path in approval.masked[:5])
    if len(approval.masked) > 5:
        names += f" and {len(approval.masked) - 5} more"
    return f"{names} {'is' if len(approval.masked) == 1 else 'are'}"


def _as_json(approval: PendingApproval) -> str:
    import msgspec

    return msgspec.json.encode(approval).decode()


def _print_decision(
    body: bytes, *, json: bool, selector: node_discovery.NodeSelector = _DEFAULT_SELECTOR
) -> None:
    """Print the outcome of a decision. The exit code says whether the call succeeded."""
    import msgspec

    from interlock.terminal.approvals_client import PendingApproval

    decided = msgspec.json.decode(body, type=PendingApproval)
    if json:
        output.print_json(msgspec.json.decode(body))
    else:
        _print_decision_text(decided, selector)
    if decided.state == _PASSED_ON_STATE:
        if not _is_rejected_by_child(decided) and msgspec.json.decode(decided.result).get(
            "isError"
        ):
            raise typer.Exit(output.FAILED)
    elif (
        decided.state not in ("done", "refused")
        or decided.error is not None
        or decided.outcome == _TOOL_ERROR
    ):
        raise typer.Exit(output.FAILED)


def _print_decision_text(decided: PendingApproval, selector: node_discovery.NodeSelector) -> None:
    from interlock.terminal.results import CLIENT_HINT, print_result

    by_text = f" by {decided.by}" if decided.by else ""
    if decided.state == "refused" or _is_rejected_by_child(decided):
        print(f"Rejected{by_text}.")
    elif decided.state == _PASSED_ON_STATE:
        output.print_note(
            f"Sent to the child node {_one_line(decided.at)}, where the call is pending."
        )
        print_result(bytes(decided.result))
    elif decided.outcome == _PENDING_AT_CHILD:
        output.print_note(f"Approved{by_text}.")
        print(_format_child_approval(bytes(decided.result)))
    else:
        output.print_note(f"Approved{by_text}: {decided.outcome or decided.state}")
        if decided.error is not None:
            message = decided.error["message"].replace(
                CLIENT_HINT, f"List the names: `{selector.format_command('tools')}`"
            )
            output.print_problem(output.sanitize(message))
            if decided.state == _VOID_STATE:
                output.print_note("The call was not made, and the approval is void.")
        elif bytes(decided.result) != b"null":
            print_result(bytes(decided.result))
        elif decided.note:
            output.print_note(output.sanitize(decided.note))


def _is_rejected_by_child(decided: PendingApproval) -> bool:
    """Return whether the child node that got the proof reports the call as rejected."""
    import msgspec

    if decided.state != _PASSED_ON_STATE:
        return False
    result = msgspec.json.decode(decided.result)
    return "content" not in result and result.get("status") == "refused"


def _format_child_approval(result: bytes) -> str:
    """Format the approval that a child node requires in addition, with the next step."""
    import shlex

    import msgspec

    content = msgspec.json.decode(result).get("structuredContent") or {}
    # Text of another node, and part of a command that the user may paste.
    id, expires, page = (
        _one_line(str(content.get(name, ""))) for name in ("confirmation_id", "expires_at", "url")
    )
    return (
        "The child node requires its own approval. The call is pending there"
        + (f" until {expires}" if expires else "")
        + f". Approve it on that node: `interlock approve {shlex.quote(id)}`"
        + (f", or open {page}" if page else "")
    )
