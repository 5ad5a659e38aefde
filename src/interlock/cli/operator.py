"""`interlock operator`: the codes that agents wait for, and the agents that run, shown to an
operator who signs in first.

A model may run as the same user and find the same socket: what it does not have is the operator's
key. So nothing is shown without a signature, here or over HTTP.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.cli import operator_key, options, running, say, where
from interlock.cli.approvals import Json, Key, PassphraseFile
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.cli.codes import Challenge, CodeDesk

_TIERS: Final = {"verify": "wants to go on with", "danger_zone": "is blocked after"}

operator = typer.Typer(invoke_without_command=True)


def _desk(
    config: Path | None, node: str | None, key: Path | None, passphrase_file: Path | None
) -> CodeDesk:
    from interlock.cli.codes import CodeDesk

    path = operator_key.chosen(key)
    operator_key.check_file(path)
    operator_key.warn_open(path)
    return CodeDesk(running.meant(config, node), operator_key.load(path, passphrase_file))


@operator.callback()
def show(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing what comes.")] = False,
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: where.ConfigOption = None,
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
        options.refuse_before_command(context)
        return
    desk = _desk(config, node, key, passphrase_file)
    known: set[str] = set()
    _print(desk, known, json=json, all=True)
    if watch:
        for _ in desk.changes():
            _print(desk, known, json=json, all=False)
        say.note("the node has stopped.")


@operator.command()
def renew(
    id: Annotated[str, typer.Argument(metavar="ID", help="The challenge, or how it begins.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: where.ConfigOption = None,
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
    config: where.ConfigOption = None,
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
        if not say.agreed("Let it act again?"):
            say.note("nothing was decided.")
            raise typer.Exit(say.FAILED)
    one = desk.find(challenge.approval)
    claims = {
        "aud": one.aud,
        "jti": one.id,
        "args_sha256": one.args_sha256,
        "decision": "approve",
    }
    proof = operator_key.sign(desk.key, now=one.now, claims=claims)
    told = msgspec.json.decode(desk.decide(one, {"proof": proof}))
    if told.get("state") != "done" or told.get("error"):
        say.problem(f"it is {told.get('state')}: {told.get('note', '')}")
        raise typer.Exit(say.FAILED)
    print(f"{_line(challenge.caller)} may act again.")


@operator.command()
def end(
    id: Annotated[str, typer.Argument(metavar="ID", help="The execution, or how its id begins.")],
    key: Key = None,
    passphrase_file: PassphraseFile = None,
    config: where.ConfigOption = None,
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

        say.as_json(msgspec.to_builtins(ended))
        return
    print(f"{ended.id} of {_who(ended.caller, ended.above)} is {ended.state}.")


def _print(desk: CodeDesk, known: set[str], *, json: bool, all: bool) -> None:
    """What is open. `known`: what was printed before, which is not printed again."""
    import msgspec

    found = desk.shown()
    if not found and all:
        say.note("no node that runs here has a safety loop.")
    if json and all:
        say.as_json({"nodes": [msgspec.to_builtins(told) for _, told in found]})
    challenges = [one for _, told in found for one in told.challenges]
    for one in challenges:
        if one.id not in known and not (json and all):
            _print_one(one, json=json)
    for id in known - {one.id for one in challenges}:
        say.note(f"{id} is over.")
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
        say.note("no agent waits.")
    for run in (run for _, told in found for run in told.executions):
        last = f", the last {run.last_step}" if run.last_step else ""
        print(
            f"{_who(run.caller, run.above)} ({_line(run.element_name)}) runs since {run.since}: "
            f"{run.steps} steps{last}, {run.violations} calls not reported\n"
            f"  interlock operator end {run.id}"
        )


def _print_one(one: Challenge, *, json: bool) -> None:
    if json:
        import msgspec

        print(msgspec.json.encode(one).decode(), flush=True)
        return
    left = operator_key.wait_a_moment(one.seconds_left)
    code = one.code or "(not known any more: interlock operator renew ID)"
    print(f"{one.id}  {left} left\n  {_block_words(one)}\n  code: {code}", flush=True)


def _block_words(one: Challenge) -> str:
    what = _TIERS.get(one.tier, "waits:")
    return f"{_who(one.caller, one.above)} ({_line(one.element_name)}) {what}: {_line(one.hint)}"


def _who(caller: str, above: str) -> str:
    return _line(f"{above}, through {caller}" if above else caller)


def _line(text: str) -> str:
    """What others wrote, in one line: it cannot look like another line of ours."""
    return " ".join(say.printable(text).split())
