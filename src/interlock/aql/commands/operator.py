"""`interlock operator`: verification codes, blocked agents and running agents, for an operator who
signs in.

A model may run as the same user and find the same socket, but it does not have the operator's key.
So nothing is shown without a signature, here or over HTTP.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from interlock.errors import UNKNOWN_APPROVAL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.durations import describe_duration
from interlock.terminal import (
    config_source,
    key_choice,
    node_discovery,
    operator_key,
    options,
    output,
)
from interlock.terminal.approvals_client import BASE_PATH, ApprovalsClient, read_error
from interlock.terminal.node_discovery import NodeOption, TargetNode
from interlock.terminal.options import Json, Key, PassphraseFile

# Access to the codes of a node: over the socket of its user or over HTTP, after signing in.

_TIMEOUT_SECONDS: Final = 15.0
_CODES: Final = f"{BASE_PATH}/codes"


class ChallengeView(msgspec.Struct, frozen=True):
    """A challenge with its code, and the agent that waits for it."""

    id: str
    caller: str
    element_name: str
    tier: str
    hint: str
    seconds_left: float
    approval: str = ""
    above: str = ""
    code: str | None = None

    def __repr__(self) -> str:
        return f"ChallengeView({self.id})"


class BlockView(msgspec.Struct, frozen=True):
    """A blocked principal."""

    caller: str
    element_name: str
    hint: str
    reason: str
    since: str
    challenge: str = ""
    above: str = ""


class ExecutionView(msgspec.Struct, frozen=True):
    """A running agent, whose calls are watched."""

    id: str
    caller: str
    element_name: str
    since: str
    steps: int
    violations: int
    last_step: str = ""
    above: str = ""
    state: str = ""


class OperatorView(msgspec.Struct, frozen=True):
    """The safety loop of one node, for an operator."""

    mode: str
    challenges: list[ChallengeView]
    blocks: list[BlockView]
    executions: list[ExecutionView] = []


class _SessionRequest(msgspec.Struct, frozen=True):
    nonce: str
    aud: str
    now: float


class CodeInbox(ApprovalsClient):
    """The safety loops of the selected nodes, with a session at each."""

    def __init__(self, target: TargetNode, key: Any) -> None:
        super().__init__(target)
        self.key = key
        self._sessions: dict[Path | None, str] = {}

    def fetch_views(self) -> list[tuple[Path | None, OperatorView]]:
        """Return the state of every node that has a safety loop. Raises InterlockError."""
        views = []
        for node_path in self._routes():
            try:
                body = self._send_signed(node_path, "GET", _CODES)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                continue
            views.append((node_path, msgspec.json.decode(body, type=OperatorView)))
        return views

    def request_challenge(self, body_fields: dict[str, str]) -> ChallengeView:
        """Request another challenge from the node that knows its subject. Raises InterlockError."""
        return msgspec.json.decode(self._send_to_any(body_fields), type=ChallengeView)

    def end(self, id: str) -> ExecutionView:
        """End an execution. Raises InterlockError."""
        return msgspec.json.decode(self._send_to_any({"end": id}), type=ExecutionView)

    def _send_to_any(self, body_fields: dict[str, str]) -> bytes:
        last_error: InterlockError | None = None
        for node_path in self._routes():
            try:
                return self._send_signed(node_path, "POST", _CODES, body_fields)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                last_error = error
        assert last_error is not None
        raise last_error

    def _send_signed(
        self, node_path: Path | None, method: str, path: str, body_fields: Any = None
    ) -> bytes:
        session = self._sessions.get(node_path)
        if session is None:
            session = self._sessions[node_path] = self._sign_in(node_path)
        return self._exchange(node_path, method, path, body_fields, {"Interlock-Session": session})

    def _sign_in(self, node_path: Path | None) -> str:
        session_request = msgspec.json.decode(
            self._exchange(node_path, "GET", f"{BASE_PATH}/session"), type=_SessionRequest
        )
        claims = {
            "aud": session_request.aud,
            "jti": "inbox",
            "args_sha256": session_request.nonce,
            "decision": "approve",
        }
        proof = operator_key.sign_proof(self.key, now=session_request.now, claims=claims)
        body = self._exchange(
            node_path,
            "POST",
            f"{BASE_PATH}/session",
            {"nonce": session_request.nonce, "proof": proof},
        )
        session: str = msgspec.json.decode(body)["session"]
        return session

    def _exchange(
        self,
        node_path: Path | None,
        method: str,
        path: str,
        body_fields: Any = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        connection = self._connection(node_path, _TIMEOUT_SECONDS)
        try:
            body = None if body_fields is None else msgspec.json.encode(body_fields)
            request_headers = {"Accept": "application/json", **(headers or {})}
            if body is not None:
                request_headers["Content-Type"] = "application/json"
            connection.request(method, path, body, request_headers)
            response = connection.getresponse()
            response_body = response.read()
        except (OSError, http.client.HTTPException):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the connection to the node was lost."
            ) from None
        finally:
            connection.close()
        if response.status != 200:
            raise read_error(response_body, response.status)
        return response_body


_TIER_PHRASES: Final = {"verify": "wants to go on with", "danger_zone": "is blocked after"}

operator = typer.Typer(invoke_without_command=True)


def _open_inbox(
    config: Path | None, node: str | None, key: Path | None, passphrase_file: Path | None
) -> CodeInbox:

    target = node_discovery.find_node(config, node)
    path = key_choice.choose_enrolled_key(key, target)
    operator_key.check_key_file(path)
    operator_key.warn_if_readable(path)
    return CodeInbox(target, operator_key.load_key(path, passphrase_file))


@operator.callback()
def show(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing changes.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show verification codes, blocked agents and running agents.

    Signs in with your key. Share a code only to let its agent continue.

    \b
    Examples:
      interlock operator --watch
      interlock operator renew 3f0c0e
      interlock operator unblock ada
      interlock operator end exec_4e52
    """
    if context.invoked_subcommand is not None:
        options.reject_options_before_command(context)
        return
    inbox = _open_inbox(config, node, key, passphrase_file)
    printed_ids: set[str] = set()
    _print_changes(inbox, printed_ids, json=json, all=True)
    if watch:
        for _ in inbox.watch_pending():
            _print_changes(inbox, printed_ids, json=json, all=False)
            output.print_note("The node has stopped.")


@operator.command()
def renew(
    id: Annotated[str, typer.Argument(metavar="ID", help="The challenge, or a prefix of its id.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Replace a lost code by a new one.

    \b
    Example:
      interlock operator renew 3f0c0e
    """
    _print_challenge(
        _open_inbox(config, node, key, passphrase_file).request_challenge({"renew": id}), json=json
    )


@operator.command()
def unblock(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The blocked caller.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Unblock a blocked caller. Signs with your key, without a code.

    \b
    Example:
      interlock operator unblock ada
    """
    import msgspec

    inbox = _open_inbox(config, node, key, passphrase_file)
    challenge = inbox.request_challenge({"blocked": name})
    if not yes:
        print(_describe_challenge(challenge))
        if not output.confirm("Unblock this agent?"):
            output.print_note("Nothing was changed.")
            raise typer.Exit(output.FAILED)
    pending = inbox.find(challenge.approval)
    claims = {
        "aud": pending.aud,
        "jti": pending.id,
        "args_sha256": pending.args_sha256,
        "decision": "approve",
    }
    proof = operator_key.sign_proof(inbox.key, now=pending.now, claims=claims)
    result = msgspec.json.decode(inbox.decide(pending, {"proof": proof}))
    if result.get("state") != "done" or result.get("error"):
        output.print_problem(f"not unblocked: {result.get('state')}: {result.get('note', '')}")
        raise typer.Exit(output.FAILED)
    print(f"{_to_one_line(challenge.caller)} is unblocked.")


@operator.command()
def end(
    id: Annotated[str, typer.Argument(metavar="ID", help="The execution, or a prefix of its id.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """End a running execution. The calls of its caller are no longer watched.

    A blocked caller stays blocked.

    \b
    Example:
      interlock operator end exec_4e52
    """
    execution = _open_inbox(config, node, key, passphrase_file).end(id)
    if json:
        import msgspec

        output.print_json(msgspec.to_builtins(execution))
        return
    print(
        f"{execution.id} of {_format_caller(execution.caller, execution.above)} "
        f"is {execution.state}."
    )


def _print_changes(inbox: CodeInbox, printed_ids: set[str], *, json: bool, all: bool) -> None:
    """Print the open challenges, blocks and executions.

    Args:
        printed_ids: ids that were printed before. They are not printed again.
    """
    import msgspec

    views = inbox.fetch_views()
    if not views and all:
        output.print_note("No running node has a safety loop.")
    if json and all:
        output.print_json(
            {"nodes": [msgspec.to_builtins(operator_view) for _, operator_view in views]}
        )
    challenges = [challenge for _, operator_view in views for challenge in operator_view.challenges]
    for challenge in challenges:
        if challenge.id not in printed_ids and not (json and all):
            _print_challenge(challenge, json=json)
    for id in printed_ids - {challenge.id for challenge in challenges}:
        output.print_note(f"Challenge {id} has ended.")
    printed_ids.clear()
    printed_ids.update(challenge.id for challenge in challenges)
    if not all or json:
        return
    open = {challenge.id for challenge in challenges}
    blocks = [
        challenge
        for _, operator_view in views
        for challenge in operator_view.blocks
        if challenge.challenge not in open
    ]
    for block in blocks:
        print(
            f"{_format_caller(block.caller, block.above)} is blocked since {block.since}: "
            f"{_to_one_line(block.reason)}\n"
            f"  interlock operator unblock {_to_one_line(block.caller)}"
        )
    if views and not challenges and not blocks:
        output.print_note("No agent is waiting.")
    for run in (run for _, operator_view in views for run in operator_view.executions):
        last_step_text = f", last step {run.last_step}" if run.last_step else ""
        print(
            f"{_format_caller(run.caller, run.above)} ({_to_one_line(run.element_name)}) "
            f"runs since {run.since}: "
            f"{run.steps} steps{last_step_text}, {run.violations} unreported calls\n"
            f"  interlock operator end {run.id}"
        )


def _print_challenge(challenge: ChallengeView, *, json: bool) -> None:
    if json:
        import msgspec

        print(msgspec.json.encode(challenge).decode(), flush=True)
        return
    remaining = describe_duration(challenge.seconds_left)
    code = challenge.code or "(no longer available: `interlock operator renew ID`)"
    print(
        f"{challenge.id}  {remaining} left\n  {_describe_challenge(challenge)}\n  code: {code}",
        flush=True,
    )


def _describe_challenge(challenge: ChallengeView) -> str:
    phrase = _TIER_PHRASES.get(challenge.tier, "waits:")
    caller = _format_caller(challenge.caller, challenge.above)
    element, hint = _to_one_line(challenge.element_name), _to_one_line(challenge.hint)
    return f"{caller} ({element}) {phrase}: {hint}"


def _format_caller(caller: str, above: str) -> str:
    return _to_one_line(f"{above}, through {caller}" if above else caller)


def _to_one_line(text: str) -> str:
    """Return text of other parties on one line, so that it cannot imitate other output lines."""
    return " ".join(output.sanitize(text).split())
