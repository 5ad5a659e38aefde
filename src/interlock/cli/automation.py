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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli import options, running, say, where
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.config import Config
    from interlock.config.automation import LearnedRule
    from interlock.pipeline.automation.decision import Decided
    from interlock.pipeline.automation.replay import Replayed
    from interlock.pipeline.automation.suggestion import Suggestion

automation = typer.Typer(invoke_without_command=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Irreversible = Annotated[
    bool, typer.Option("--irreversible", help="Also for what cannot be undone.")
]
_STYLES: Final = {"allow": "green", "deny": "bold red"}
_MOST_SHOWN: Final = 300
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
      interlock automation revert allow-files.write-1f0c0e
    """
    if context.invoked_subcommand is not None:
        options.refuse_before_command(context)
        return
    _list(config, node, json=json, irreversible=irreversible)


@automation.command("list")
def list_suggestions(
    irreversible: Irreversible = False,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show which rules are suggested, and which are in force.

    \b
    Example:
      interlock automation list
    """
    _list(config, node, json=json, irreversible=irreversible)


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

    past = _Past(config, node)
    found = past.find(id, irreversible=irreversible)
    result = replayed(found.rule, past.history)
    if json:
        say.as_json(_row(found) | {"replay": _replay_row(result)})
    else:
        _print_whole(found, result)


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

    past = _Past(config, node)
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
        say.as_json([{"rule": rule.name, **_replay_row(one)} for rule, one in results])
    else:
        for rule, one in results:
            print(f"{_line(rule.name)} {one.words}.")
            _print_examples(one)
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

    past = _Past(config, node)
    path = past.config_path()
    found = past.find(id, irreversible=irreversible)
    if found.evidence is None:
        say.note(f"{_line(found.rule.name)} is in force already.")
        return
    _print_whole(found, replayed(found.rule, past.history))
    say.note(_VOID)
    if not _agreed(found.rule, open or [], yes=yes):
        say.note("nothing was changed.")
        raise typer.Exit(say.FAILED)
    rule = replace(found.rule, accepted=f"{utc(time.time())} by {getpass.getuser()}")
    # Read again: whoever was asked may have taken a while.
    write_text(path, add_learned(read_text(path), rule, str(path)))
    print(f"{_line(rule.name)} is in {path} now.")
    say.note(f"`interlock automation revert {_line(rule.name)}` takes it back.")


@automation.command()
def revert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule, as it is called.")],
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Take an accepted rule back: humans are asked again. A running node heeds it by itself.

    \b
    Example:
      interlock automation revert allow-files.write-1f0c0e
    """
    from interlock.cli.add import write_text
    from interlock.config.edit_rules import remove_learned
    from interlock.config.load import read_text

    path = _config_path(running.with_files(config, node))
    write_text(path, remove_learned(read_text(path), name, str(path)))
    print(f"{_line(name)} is in {path} no more: humans are asked again.")
    say.note(_VOID)


# -- what there is


class _Found:
    """A suggestion, or a rule that is in force."""

    def __init__(self, rule: LearnedRule, suggestion: Suggestion | None = None) -> None:
        self.rule = rule
        self.id = rule.name if suggestion is None else suggestion.id
        self.words = rule.reason if suggestion is None else suggestion.words
        self.evidence = None if suggestion is None else suggestion.evidence


class _Past:
    """Everything that humans decided at the node that is meant. Raises ConfigError,
    InterlockError."""

    def __init__(self, config: Path | None, node: str | None) -> None:
        from interlock.node.places import decisions_path
        from interlock.stores.decisions import DecisionStore

        self.meant = running.with_files(config, node)
        self.config: Config = self.meant.config
        self.path = decisions_path(self.config, os.environ, self.meant.base_dir)
        store = DecisionStore(
            self.path,
            deliver=lambda what: what(),
            settings=self.config.automation,
            wall_clock=time.time,
        )
        try:
            self.history: list[Decided] = store.history()
        finally:
            store.close()

    def config_path(self) -> Path:
        return _config_path(self.meant)

    @property
    def rules(self) -> list[LearnedRule]:
        return self.config.policy.learned

    def suggestions(self, *, irreversible: bool) -> list[Suggestion]:
        from interlock.pipeline.automation.suggestion import suggest

        return suggest(
            self.history, self.config.automation, standing=self.rules, irreversible=irreversible
        )

    def find(self, id: str, *, irreversible: bool) -> _Found:
        """What is called so; says what is wrong, and ends, where nothing is."""
        for rule in self.rules:
            if rule.name == id:
                return _Found(rule)
        found = [one for one in self.suggestions(irreversible=irreversible) if one.id == id]
        if found:
            return _Found(found[0].rule, found[0])
        if not irreversible and any(one.id == id for one in self.suggestions(irreversible=True)):
            say.problem(
                f"{_line(id)} would also answer for what cannot be undone. If that is what you "
                "want, say --irreversible."
            )
        else:
            say.problem(
                f"nothing is called {_line(id)} here. Suggestions change with every decision: "
                "`interlock automation` has those of now."
            )
        raise typer.Exit(say.FAILED)


def _config_path(meant: running.Meant) -> Path:
    if meant.source is None or meant.source.path is None:
        from interlock.config import ConfigError

        raise ConfigError.of(
            "the rules of a node stand in its config, and none was found", "name it with --config"
        )
    return meant.source.path


def _agreed(rule: LearnedRule, opened: list[str], *, yes: bool) -> bool:
    """Whether somebody wants the rule, and each argument that it leaves open."""
    for name in opened:
        if name not in rule.open:
            raise typer.BadParameter(f"{_line(rule.name)} does not leave {_line(name)} open")
    left = [name for name in rule.open if name not in opened]
    asked = not yes and sys.stdin.isatty()
    if left and not asked:
        said = " ".join(f"--open {shlex.quote(_line(name))}" for name in left)
        raise typer.BadParameter(
            "this rule lets calls through whatever some arguments say. If that is what you want, "
            f"say {said}"
        )
    for name in left:
        if not say.agreed(f"Let calls through whatever {_line(name)} says?"):
            return False
    if yes:
        return True
    if not asked:
        raise typer.BadParameter("nobody can be asked here: look at the rule, then say --yes")
    return say.agreed(f"Accept {_line(rule.name)} as shown?")


# -- what is said


def _list(config: Path | None, node: str | None, *, json: bool, irreversible: bool) -> None:
    from rich.text import Text

    past = _Past(config, node)
    found = past.suggestions(irreversible=irreversible)
    if json:
        say.as_json(
            {
                "decisions": len(past.history),
                "suggestions": [_row(_Found(one.rule, one)) for one in found],
                "rules": past.rules,
            }
        )
        return
    console = say.console()
    for one in found:
        then = one.rule.then
        line = Text.assemble(f"{one.id}  ", (f"{then:<6}", _STYLES[then]), _short(one.words))
        console.print(line, soft_wrap=True)
        console.print(Text(f"           {_short(one.evidence.words)}", "dim"), soft_wrap=True)
    if past.rules:
        console.print("in force:")
    for rule in past.rules:
        line = Text.assemble(
            "  ", (f"{rule.then:<6}", _STYLES[rule.then]), _line(rule.name),
            (f"  accepted {_line(rule.accepted)}" if rule.accepted else "", "dim"),
        )  # fmt: skip
        console.print(line, soft_wrap=True)
    _say_more(past, len(found), irreversible=irreversible)


def _say_more(past: _Past, found: int, *, irreversible: bool) -> None:
    from interlock.pipeline.automation.rule import undoable

    settings = past.config.automation
    if not settings.enabled:
        say.note("decisions are not kept: automation.enabled is false.")
    if found:
        say.note("`interlock automation show ID` shows one whole, `accept` accepts it.")
    else:
        decided = len(past.history)
        say.note(
            f"no rule is suggested: {decided} {'decision is' if decided == 1 else 'decisions are'} "
            f"remembered, and it takes {settings.decisions} alike."
        )
    if not irreversible and any(not undoable(one.effect) for one in past.history):
        more = len(past.suggestions(irreversible=True)) - found
        if more > 0:
            say.note(f"{more} more about what cannot be undone: say --irreversible to see them.")


def _print_whole(found: _Found, result: Replayed) -> None:
    from rich.text import Text

    from interlock.config.edit_rules import rule_text

    console = say.console()
    console.print(Text(say.printable(found.words or found.rule.name)), soft_wrap=True)
    console.print()
    console.print(Text(say.printable(rule_text(found.rule)), "cyan"), soft_wrap=True)
    rule = found.rule
    if found.evidence is not None:
        console.print(Text(f"Evidence: {_line(found.evidence.words)}."), soft_wrap=True)
        left_out = found.evidence.agreed - found.evidence.counted
        if left_out:
            console.print(
                f"          {left_out} of them came so fast that they do not count.", soft_wrap=True
            )
        if found.evidence.last_exception is not None:
            console.print(
                Text(f"Last exception: {_told(found.evidence.last_exception)}"), soft_wrap=True
            )
    elif rule.accepted:
        console.print(Text(f"Accepted {_line(rule.accepted)}."), soft_wrap=True)
    console.print(Text(f"Replayed: it {result.words}."), soft_wrap=True)
    _print_examples(result, None if found.evidence is None else found.evidence.last_exception)


def _print_examples(result: Replayed, but: Decided | None = None) -> None:
    """What humans decided otherwise. `but`: that one was shown."""
    for one in result.examples:
        if one != but:
            print(f"  {_told(one)}")
    more = result.other - len(result.examples)
    if more > 0:
        print(f"  and {more} more")


def _told(one: Decided) -> str:
    from interlock.pipeline.approval.record import utc

    verdict = "approved" if one.verdict == "approve" else "refused"
    return _short(
        f"{utc(one.time)}  {verdict} by {one.by}: {one.tool} of {one.caller} "
        f"with {one.arguments.decode()}"
    )


def _row(found: _Found) -> dict[str, Any]:
    row: dict[str, Any] = {"id": found.id, "words": found.words, "rule": found.rule}
    evidence = found.evidence
    if evidence is not None:
        exception = evidence.last_exception
        row["evidence"] = {
            "agreed": evidence.agreed,
            "decided": evidence.decided,
            "counted": evidence.counted,
            "unjudged": evidence.unjudged,
            "doubtful": evidence.doubtful,
            "by": evidence.by,
            "first": evidence.first,
            "last": evidence.last,
            "last_exception": None if exception is None else _decision_row(exception),
        }
    return row


def _replay_row(result: Replayed) -> dict[str, Any]:
    return {
        "covered": result.covered,
        "same": result.same,
        "other": result.other,
        "unjudged": result.unjudged,
        "words": result.words,
        "examples": [_decision_row(one) for one in result.examples],
    }


def _decision_row(one: Decided) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(one) | {"arguments": msgspec.Raw(one.arguments)}


def _line(text: str) -> str:
    """What others wrote, on one line."""
    return " ".join(say.printable(text).split())


def _short(text: str) -> str:
    line = _line(text)
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "…"
