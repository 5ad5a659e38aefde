"""`interlock automation`: which rules the decisions of humans suggest, with their evidence; trying
one against the past, accepting it, and taking it back.

Nothing of this goes over the wire: to accept a rule is to write it into the config, which only its
owner can.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.cli import options, running, say, where
from interlock.cli.automation_past import Past, config_path, is_called, line
from interlock.cli.automation_shown import (
    print_examples,
    print_whole,
    replay_row,
    row,
    show_list,
)
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.config.automation import LearnedRule

automation = typer.Typer(invoke_without_command=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Irreversible = Annotated[
    bool, typer.Option("--irreversible", help="Also for what cannot be undone.")
]
_VOID: Final = (
    "Rules change with this: calls that wait for a human now can no longer be approved, and have "
    "to be asked for again."
)


@automation.callback()
def overview(
    context: typer.Context,
    irreversible: Irreversible = False,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Rules that humans' decisions suggest: look, try, accept, take back.

    A call that humans decided the same way again and again may be decided without them. The rule is
    suggested here, in words and as config. It counts once somebody accepts it, and can be taken
    back. What cannot be undone is never part of it, unless you say so.

    \b
    Examples:
      interlock automation
      interlock automation show s1f0c0e2a
      interlock automation accept s1f0c0e2a
      interlock automation dismiss s1f0c0e2a
      interlock automation revert allow-files.write-1f0c0e
    """
    if context.invoked_subcommand is not None:
        options.refuse_before_command(context)
        return
    show_list(Past(config, node), json=json, irreversible=irreversible, all=False)


@automation.command("list")
def list_suggestions(
    irreversible: Irreversible = False,
    all: Annotated[bool, typer.Option("--all", help="Also those that were dismissed.")] = False,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show which rules are suggested, and which are in force.

    \b
    Examples:
      interlock automation list
      interlock automation list --all
    """
    show_list(Past(config, node), json=json, irreversible=irreversible, all=all)


@automation.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="A suggestion, or a rule by its name.")],
    irreversible: Irreversible = False,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show a rule in words and as config, its evidence, and what it would have decided.

    \b
    Example:
      interlock automation show s1f0c0e2a
    """
    from interlock.pipeline.automation.replay import replay as replayed

    past = Past(config, node)
    found = past.find(id, irreversible=irreversible)
    result = replayed(found.rule, past.history)
    if json:
        say.as_json(row(found) | {"replay": replay_row(result)})
    else:
        print_whole(found, result)


@automation.command()
def replay(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ID-or-FILE",
            help="A suggestion, a rule by its name, or a config whose learned rules are meant.",
        ),
    ],
    irreversible: Irreversible = False,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Try rules against every decision that is remembered. Nothing is changed by that.

    Exit code 1 when a human once decided otherwise.

    \b
    Examples:
      interlock automation replay s1f0c0e2a
      interlock automation replay my-rules.yaml
    """
    from interlock.config import load_config
    from interlock.pipeline.automation.replay import replay as replayed

    past = Past(config, node)
    # One that is not there is told as such: no rule is called so.
    if os.path.isfile(what) or what.endswith((".yaml", ".yml", ".json")):
        rules = load_config(what).policy.learned
        if not rules:
            say.problem(f"{what} has no rules below policy.learned.")
            raise typer.Exit(say.FAILED)
    else:
        rules = [past.find(what, irreversible=irreversible).rule]
    results = [(rule, replayed(rule, past.history)) for rule in rules]
    if json:
        say.as_json([{"rule": rule.name, **replay_row(one)} for rule, one in results])
    else:
        for rule, one in results:
            print(f"{line(rule.name)} {one.words}.")
            print_examples(one)
    if any(one.other for _, one in results):
        raise typer.Exit(say.FAILED)


@automation.command()
def accept(
    id: Annotated[str, typer.Argument(metavar="ID", help="The suggestion.")],
    irreversible: Annotated[
        bool,
        typer.Option("--irreversible", help="Yes, also where it answers for what stays for good."),
    ] = False,
    open: Annotated[
        list[str] | None,
        typer.Option("--open", metavar="NAME", help="Yes, whatever this argument says."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; arguments are opened by --open only.")
    ] = False,
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept a suggested rule: it is written into the config. Shows it first, and asks.

    An argument that may say anything is asked for by its name, or named with --open. A running
    node takes the rule up by itself. `interlock automation revert NAME` takes it back.

    \b
    Examples:
      interlock automation accept s1f0c0e2a
      interlock automation accept s1f0c0e2a --yes --open content
    """
    from msgspec.structs import replace

    from interlock.cli.add import write_text
    from interlock.config.edit_rules import add_learned
    from interlock.config.load import read_text
    from interlock.pipeline.approval.record import utc
    from interlock.pipeline.automation.replay import replay as replayed

    past = Past(config, node)
    path = past.config_path()
    found = past.find(id, irreversible=irreversible)
    if found.evidence is None:
        say.note(f"{line(found.rule.name)} is in force already.")
        return
    print_whole(found, replayed(found.rule, past.history))
    say.note(_VOID)
    if not _agreed(found.rule, open or [], yes=yes):
        say.note("nothing was changed.")
        raise typer.Exit(say.FAILED)
    rule = replace(found.rule, accepted=f"{utc(time.time())} by {getpass.getuser()}")
    # Read again: whoever was asked may have taken a while.
    write_text(path, add_learned(read_text(path), rule, str(path)))
    if found.dismissed is not None:
        with past.store() as store:
            store.restore([found.id, found.dismissed.id])
    print(f"{line(rule.name)} is in {path} now.")
    say.note(f"`interlock automation revert {line(rule.name)}` takes it back.")


@automation.command()
def revert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule, as it is called.")],
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Take an accepted rule back: humans are asked again. A running node heeds it by itself.

    It counts as dismissed, so it is not suggested again at once.

    \b
    Example:
      interlock automation revert allow-files.write-1f0c0e
    """
    from interlock.cli.add import write_text
    from interlock.config.edit_rules import remove_learned
    from interlock.config.load import read_text
    from interlock.errors import InterlockError
    from interlock.pipeline.automation.replay import replay as replayed
    from interlock.pipeline.automation.suggestion import id_of

    path = config_path(running.with_files(config, node))
    text = remove_learned(read_text(path), name, str(path))
    try:
        past = Past(config, node)
        # Before the config, by which a running node notices it: its journal says who did it.
        for rule in past.rules:
            if rule.name == name:
                same = replayed(rule, past.history).same
                past.dismiss(id_of(rule), rule, same, reverted=True)
    except InterlockError as error:
        # It is taken back all the same.
        say.note(f"that it is not wanted cannot be remembered: {error.message}")
    write_text(path, text)
    print(f"{line(name)} is in {path} no more: humans are asked again.")
    say.note(_VOID)


@automation.command()
def dismiss(
    id: Annotated[str, typer.Argument(metavar="ID", help="The suggestion, or its rule's name.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="It was a mistake: let it be suggested again.")
    ] = False,
    irreversible: Irreversible = False,
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Do not want a suggestion: it is not shown again, nor are others for the same decisions,
    before humans have decided as much anew as there was. Who dismissed it, and when, is kept.

    \b
    Examples:
      interlock automation dismiss s1f0c0e2a
      interlock automation list --all
      interlock automation dismiss --undo s1f0c0e2a
    """
    past = Past(config, node)
    if undo:
        meant = [one.id for one in past.dismissed if is_called(one, id)]
        if not meant:
            say.problem(f"nothing that was dismissed is called {line(id)} here.")
            raise typer.Exit(say.FAILED)
        with past.store() as store:
            store.restore(meant)
        print(f"{line(id)} may be suggested again.")
        return
    found = past.find(id, irreversible=irreversible)
    if found.evidence is None:
        say.problem(f"{line(id)} is in force: `interlock automation revert` takes it back.")
        raise typer.Exit(say.FAILED)
    past.dismiss(found.id, found.rule, found.evidence.agreed)
    least = max(found.evidence.agreed, past.config.automation.decisions)
    print(f"{line(found.rule.name)} is not suggested before {least} more decisions like these.")
    say.note(f"`interlock automation dismiss --undo {line(found.id)}` brings it back.")


def _agreed(rule: LearnedRule, opened: list[str], *, yes: bool) -> bool:
    """Whether somebody wants the rule, and each argument that it leaves open."""
    for name in opened:
        if name not in rule.open:
            raise typer.BadParameter(f"{line(rule.name)} does not leave {line(name)} open")
    left = [name for name in rule.open if name not in opened]
    asked = not yes and sys.stdin.isatty()
    if left and not asked:
        said = " ".join(f"--open {shlex.quote(line(name))}" for name in left)
        raise typer.BadParameter(
            "this rule lets calls through whatever some arguments say. If that is what you want, "
            f"say {said}"
        )
    for name in left:
        if not say.agreed(f"Let calls through whatever {line(name)} says?"):
            return False
    if yes:
        return True
    if not asked:
        raise typer.BadParameter("nobody can be asked here: look at the rule, then say --yes")
    return say.agreed(f"Accept {line(rule.name)} as shown?")
