"""`interlock operator`: the codes that agents wait for, and the agents that run, shown to an
operator who signs in first.

A model may run as the same user and find the same socket: what it does not have is the operator's
key. So nothing is shown without a signature, here or over HTTP.
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

# -- Reaching the codes of a node: by the socket of its own user or over HTTP, after signing in.

_WITHIN: Final = 15.0
_CODES: Final = f"{BASE_PATH}/codes"


class ChallengeView(msgspec.Struct, frozen=True):
    """A challenge: its code, and who waits for it."""

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
    """What one node shows to an operator."""

    mode: str
    challenges: list[ChallengeView]
    blocks: list[BlockView]
    executions: list[ExecutionView] = []


class _Question(msgspec.Struct, frozen=True):
    nonce: str
    aud: str
    now: float


class CodeInbox(ApprovalsClient):
    """The safety loops of the chosen nodes, after signing in at each."""

    def __init__(self, meant: TargetNode, key: Any) -> None:
        super().__init__(meant)
        self.key = key
        self._sessions: dict[Path | None, str] = {}

    def shown(self) -> list[tuple[Path | None, OperatorView]]:
        """Of every node that has a safety loop. Raises InterlockError."""
        found = []
        for way in self._routes():
            try:
                body = self._signed_in(way, "GET", _CODES)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                continue
            found.append((way, msgspec.json.decode(body, type=OperatorView)))
        return found

    def another(self, sent: dict[str, str]) -> ChallengeView:
        """Another challenge, of whichever node knows what it is about. Raises InterlockError."""
        return msgspec.json.decode(self._answered(sent), type=ChallengeView)

    def end(self, id: str) -> ExecutionView:
        """End an execution. Raises InterlockError."""
        return msgspec.json.decode(self._answered({"end": id}), type=ExecutionView)

    def _answered(self, sent: dict[str, str]) -> bytes:
        unknown: InterlockError | None = None
        for way in self._routes():
            try:
                return self._signed_in(way, "POST", _CODES, sent)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                unknown = error
        assert unknown is not None
        raise unknown

    def _signed_in(self, way: Path | None, method: str, path: str, sent: Any = None) -> bytes:
        session = self._sessions.get(way)
        if session is None:
            session = self._sessions[way] = self._session(way)
        return self._fetched(way, method, path, sent, {"Interlock-Session": session})

    def _session(self, way: Path | None) -> str:
        question = msgspec.json.decode(
            self._fetched(way, "GET", f"{BASE_PATH}/session"), type=_Question
        )
        claims = {
            "aud": question.aud,
            "jti": "inbox",
            "args_sha256": question.nonce,
            "decision": "approve",
        }
        proof = operator_key.sign_proof(self.key, now=question.now, claims=claims)
        body = self._fetched(
            way, "POST", f"{BASE_PATH}/session", {"nonce": question.nonce, "proof": proof}
        )
        session: str = msgspec.json.decode(body)["session"]
        return session

    def _fetched(
        self,
        way: Path | None,
        method: str,
        path: str,
        sent: Any = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        connection = self._connection(way, _WITHIN)
        try:
            body = None if sent is None else msgspec.json.encode(sent)
            said = {"Accept": "application/json", **(headers or {})}
            if body is not None:
                said["Content-Type"] = "application/json"
            connection.request(method, path, body, said)
            answer = connection.getresponse()
            got = answer.read()
        except (OSError, http.client.HTTPException):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the node went away while it was asked."
            ) from None
        finally:
            connection.close()
        if answer.status != 200:
            raise read_error(got, answer.status)
        return got


_TIERS: Final = {"verify": "wants to go on with", "danger_zone": "is blocked after"}

operator = typer.Typer(invoke_without_command=True)


def _desk(
    config: Path | None, node: str | None, key: Path | None, passphrase_file: Path | None
) -> CodeInbox:

    meant = node_discovery.find_node(config, node)
    path = key_choice.choose_enrolled_key(key, meant)
    operator_key.check_key_file(path)
    operator_key.warn_if_readable(path)
    return CodeInbox(meant, operator_key.load_key(path, passphrase_file))


@operator.callback()
def show(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing what comes.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show the codes that agents wait for, agents that are blocked, and those that run.

    Signs in with your key. Tell a code only to whoever may go on.

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
    desk = _desk(config, node, key, passphrase_file)
    known: set[str] = set()
    _print(desk, known, json=json, all=True)
    if watch:
        for _ in desk.watch_pending():
            _print(desk, known, json=json, all=False)
        output.print_note("the node has stopped.")


@operator.command()
def renew(
    id: Annotated[str, typer.Argument(metavar="ID", help="The challenge, or how it begins.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Make another code in place of one that was lost.

    \b
    Example:
      interlock operator renew 3f0c0e
    """
    _print_one(_desk(config, node, key, passphrase_file).another({"renew": id}), json=json)


@operator.command()
def unblock(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The caller who is blocked.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Let somebody act again who is blocked: signs with your key, without a code.

    \b
    Example:
      interlock operator unblock ada
    """
    import msgspec

    desk = _desk(config, node, key, passphrase_file)
    challenge = desk.another({"blocked": name})
    if not yes:
        print(_block_words(challenge))
        if not output.confirm("Let it act again?"):
            output.print_note("nothing was decided.")
            raise typer.Exit(output.FAILED)
    one = desk.find(challenge.approval)
    claims = {
        "aud": one.aud,
        "jti": one.id,
        "args_sha256": one.args_sha256,
        "decision": "approve",
    }
    proof = operator_key.sign_proof(desk.key, now=one.now, claims=claims)
    told = msgspec.json.decode(desk.decide(one, {"proof": proof}))
    if told.get("state") != "done" or told.get("error"):
        output.print_problem(f"it is {told.get('state')}: {told.get('note', '')}")
        raise typer.Exit(output.FAILED)
    print(f"{_line(challenge.caller)} may act again.")


@operator.command()
def end(
    id: Annotated[str, typer.Argument(metavar="ID", help="The execution, or how its id begins.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """End an execution that runs: what its caller does is watched no more.

    Who is blocked stays blocked.

    \b
    Example:
      interlock operator end exec_4e52
    """
    ended = _desk(config, node, key, passphrase_file).end(id)
    if json:
        import msgspec

        output.print_json(msgspec.to_builtins(ended))
        return
    print(f"{ended.id} of {_who(ended.caller, ended.above)} is {ended.state}.")


def _print(desk: CodeInbox, known: set[str], *, json: bool, all: bool) -> None:
    """What is open. `known`: what was printed before, which is not printed again."""
    import msgspec

    found = desk.shown()
    if not found and all:
        output.print_note("no node that runs here has a safety loop.")
    if json and all:
        output.print_json({"nodes": [msgspec.to_builtins(told) for _, told in found]})
    challenges = [one for _, told in found for one in told.challenges]
    for one in challenges:
        if one.id not in known and not (json and all):
            _print_one(one, json=json)
    for id in known - {one.id for one in challenges}:
        output.print_note(f"{id} is over.")
    known.clear()
    known.update(one.id for one in challenges)
    if not all or json:
        return
    open = {one.id for one in challenges}
    blocks = [one for _, told in found for one in told.blocks if one.challenge not in open]
    for block in blocks:
        print(
            f"{_who(block.caller, block.above)} is blocked since {block.since}: "
            f"{_line(block.reason)}\n"
            f"  interlock operator unblock {_line(block.caller)}"
        )
    if found and not challenges and not blocks:
        output.print_note("no agent waits.")
    for run in (run for _, told in found for run in told.executions):
        last = f", the last {run.last_step}" if run.last_step else ""
        print(
            f"{_who(run.caller, run.above)} ({_line(run.element_name)}) runs since {run.since}: "
            f"{run.steps} steps{last}, {run.violations} calls not reported\n"
            f"  interlock operator end {run.id}"
        )


def _print_one(one: ChallengeView, *, json: bool) -> None:
    if json:
        import msgspec

        print(msgspec.json.encode(one).decode(), flush=True)
        return
    left = describe_duration(one.seconds_left)
    code = one.code or "(not known any more: interlock operator renew ID)"
    print(f"{one.id}  {left} left\n  {_block_words(one)}\n  code: {code}", flush=True)


def _block_words(one: ChallengeView) -> str:
    what = _TIERS.get(one.tier, "waits:")
    return f"{_who(one.caller, one.above)} ({_line(one.element_name)}) {what}: {_line(one.hint)}"


def _who(caller: str, above: str) -> str:
    return _line(f"{above}, through {caller}" if above else caller)


def _line(text: str) -> str:
    """What others wrote, in one line: it cannot look like another line of ours."""
    return " ".join(output.sanitize(text).split())
