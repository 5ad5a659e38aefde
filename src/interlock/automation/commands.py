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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.automation.config import AutomationConfig
from interlock.primitives.timestamps import format_utc
from interlock.terminal import config_source, node_discovery, options, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.automation.decision import HumanDecision
    from interlock.automation.dismissal import Dismissal
    from interlock.automation.replay import ReplayResult
    from interlock.automation.store import DecisionStore
    from interlock.automation.suggestion import Suggestion
    from interlock.core.config import Config, LearnedRule


# -- What `interlock automation` looks at: the decisions that are remembered, the rules in force,
# what they suggest, and what somebody does not want to see suggested.


def line(text: str) -> str:
    """What others wrote, on one line."""
    return " ".join(output.sanitize(text).split())


class RuleCandidate:
    """A suggestion, or a rule that is in force."""

    def __init__(self, rule: LearnedRule, suggestion: Suggestion | None = None) -> None:
        self.rule = rule
        self.id = rule.name if suggestion is None else suggestion.id
        self.words = rule.reason if suggestion is None else suggestion.words
        self.evidence = None if suggestion is None else suggestion.evidence
        self.dismissed = None if suggestion is None else suggestion.dismissed


def is_called(one: Suggestion | Dismissal, id: str) -> bool:
    """By its id, or as its rule would be called."""
    return id in (one.id, one.rule.name)


class DecisionHistory:
    """The decisions of humans at the chosen node. Raises ConfigError, InterlockError."""

    def __init__(self, config: Path | None, node: str | None) -> None:
        self.meant = node_discovery.find_local_node(config, node)
        self.config: Config = self.meant.config
        with self.store() as store:
            self.history: list[HumanDecision] = store.history()
            self.dismissed: list[Dismissal] = store.dismissed()

    @contextmanager
    def store(self) -> Iterator[DecisionStore]:
        """Where all of this is kept."""
        from interlock.automation.store import DecisionStore, decisions_path

        store = DecisionStore(
            decisions_path(self.config, os.environ, self.meant.base_dir),
            deliver=lambda what: what(),
            settings=self.config.section(AutomationConfig),
            wall_clock=time.time,
        )
        try:
            yield store
        finally:
            store.close()

    def dismiss(self, id: str, rule: LearnedRule, agreed: int, *, reverted: bool = False) -> None:
        """Remember that it is not wanted. `agreed`: how many decisions bear it."""
        from interlock.automation.dismissal import Dismissal

        with self.store() as store:
            store.dismiss(
                Dismissal(
                    id=id,
                    rule=rule,
                    by=getpass.getuser(),
                    time=time.time(),
                    agreed=agreed,
                    reverted=reverted,
                )
            )

    def config_path(self) -> Path:
        return config_path(self.meant)

    @property
    def rules(self) -> list[LearnedRule]:
        return self.config.policy.learned

    def suggestions(self, *, irreversible: bool) -> list[Suggestion]:
        """Those that were dismissed, too."""
        from interlock.automation.suggestion import suggest

        return suggest(
            self.history,
            self.config.section(AutomationConfig),
            standing=self.rules,
            irreversible=irreversible,
            dismissed=self.dismissed,
        )

    def covered(self) -> int:
        """How many of the decisions the rules in force would make."""
        from interlock.automation.rule import CompiledRule, read_case

        rules = [CompiledRule(rule) for rule in self.rules]
        cases = map(read_case, self.history) if rules else ()
        return sum(any(rule.covers(case) for rule in rules) for case in cases)

    def find(self, id: str, *, irreversible: bool) -> RuleCandidate:
        """What is called so; says what is wrong, and ends, where nothing is."""
        for rule in self.rules:
            if rule.name == id:
                return RuleCandidate(rule)
        found = [one for one in self.suggestions(irreversible=irreversible) if is_called(one, id)]
        if found:
            return RuleCandidate(found[0].rule, found[0])
        if not irreversible and any(
            is_called(one, id) for one in self.suggestions(irreversible=True)
        ):
            output.print_problem(
                f"{line(id)} would also answer for what cannot be undone. If that is what you "
                "want, say --irreversible."
            )
        else:
            output.print_problem(
                f"nothing is called {line(id)} here. Suggestions change with every decision: "
                f"`{self.meant.selector.format_command('automation list')}` has those of now."
            )
        raise typer.Exit(output.FAILED)


def config_path(meant: node_discovery.TargetNode) -> Path:
    if meant.source is None or meant.source.path is None:
        from interlock.core.config import ConfigError

        raise ConfigError.of(
            "the rules of a node stand in its config, and none was found", "name it with --config"
        )
    return meant.source.path


# -- What `interlock automation` says: lists, one rule whole, and rows for programs.

_STYLES: Final = {"allow": "green", "deny": "bold red"}
_MOST_SHOWN: Final = 300


def show_list(past: DecisionHistory, *, json: bool, irreversible: bool, all: bool) -> None:
    """Suggestions and rules. `all`: also what was dismissed."""
    from rich.text import Text

    every = past.suggestions(irreversible=irreversible)
    found = [one for one in every if all or one.dismissed is None]
    if json:
        output.print_json(
            {
                "decisions": len(past.history),
                "suggestions": [row(RuleCandidate(one.rule, one)) for one in found],
                "rules": past.rules,
                "dismissed": [_dismissed_row(one) for one in past.dismissed],
            }
        )
        return
    console = output.create_console()
    for one in found:
        then = one.rule.then
        text = Text.assemble(f"{one.id}  ", (f"{then:<6}", _STYLES[then]), short(one.words))
        console.print(text, soft_wrap=True)
        console.print(Text(f"           {short(one.evidence.words)}", "dim"), soft_wrap=True)
    if past.rules:
        console.print("in force:")
    for rule in past.rules:
        text = Text.assemble(
            "  ", (f"{rule.then:<6}", _STYLES[rule.then]), line(rule.name),
            (f"  accepted {line(rule.accepted)}" if rule.accepted else "", "dim"),
        )  # fmt: skip
        console.print(text, soft_wrap=True)
    if all and past.dismissed:
        console.print("dismissed:")
        for no in past.dismissed:
            text = Text.assemble(
                f"  {no.id}  ", (f"{no.rule.then:<6}", _STYLES[no.rule.then]), line(no.rule.name),
                (f"  {_why(no)}", "dim"),
            )  # fmt: skip
            console.print(text, soft_wrap=True)
    _say_more(past, len(found), len(every) - len(found), irreversible=irreversible)


def _why(one: Dismissal) -> str:

    word = "reverted" if one.reverted else "dismissed"
    return f"{word} {format_utc(one.time)} by {line(one.by)}"


def _say_more(past: DecisionHistory, found: int, dismissed: int, *, irreversible: bool) -> None:
    from interlock.automation.rule import undoable

    if not past.config.section(AutomationConfig).enabled:
        output.print_note("decisions are not kept: automation.enabled is false.")
    if found:
        show, accept = map(
            past.meant.selector.format_command, ("automation show ID", "automation accept ID")
        )
        output.print_note(f"`{show}` shows one whole, `{accept}` accepts it.")
    else:
        output.print_note(f"no rule is suggested: {_why_none(past)}.")
    if dismissed:
        which = "1 more was" if dismissed == 1 else f"{dismissed} more were"
        listed = past.meant.selector.format_command("automation list --all")
        output.print_note(f"{which} dismissed: `{listed}` shows them.")
    if not irreversible and any(not undoable(one.effect) for one in past.history):
        others = past.suggestions(irreversible=True)
        more = len([one for one in others if one.dismissed is None]) - found
        if more > 0:
            output.print_note(
                f"{more} more about what cannot be undone: say --irreversible to see them."
            )


def _why_none(past: DecisionHistory) -> str:
    decided, takes = len(past.history), past.config.section(AutomationConfig).decisions
    remembered = f"{decided} {'decision is' if decided == 1 else 'decisions are'} remembered"
    covered = past.covered()
    if not covered:
        return f"{remembered}, and it takes {takes} alike"
    if covered == decided:
        return f"{remembered}, and the rules in force answer for all of them"
    return (
        f"{remembered}, the rules in force answer for {covered} of them, and of the others it "
        f"takes {takes} alike"
    )


def print_whole(found: RuleCandidate, result: ReplayResult) -> None:
    from rich.text import Text

    from interlock.core.config.edit import rule_text

    console = output.create_console()
    console.print(Text(output.sanitize(found.words or found.rule.name)), soft_wrap=True)
    console.print()
    console.print(Text(output.sanitize(rule_text(found.rule)), "cyan"), soft_wrap=True)
    rule = found.rule
    if found.evidence is not None:
        console.print(Text(f"Evidence: {line(found.evidence.words)}."), soft_wrap=True)
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
        console.print(Text(f"Accepted {line(rule.accepted)}."), soft_wrap=True)
    if found.dismissed is not None:
        console.print(Text(f"It was {_why(found.dismissed)}."), soft_wrap=True)
    console.print(Text(f"Replayed: it {result.words}."), soft_wrap=True)
    print_examples(result, None if found.evidence is None else found.evidence.last_exception)


def print_examples(result: ReplayResult, but: HumanDecision | None = None) -> None:
    """What humans decided otherwise. `but`: that one was shown."""
    for one in result.examples:
        if one != but:
            print(f"  {_told(one)}")
    more = result.other - len(result.examples)
    if more > 0:
        print(f"  and {more} more")


def _told(one: HumanDecision) -> str:

    verdict = "approved" if one.verdict == "approve" else "refused"
    return short(
        f"{format_utc(one.time)}  {verdict} by {one.by}: {one.tool} of {one.caller} "
        f"with {one.arguments.decode()}"
    )


def row(found: RuleCandidate) -> dict[str, Any]:
    told: dict[str, Any] = {"id": found.id, "words": found.words, "rule": found.rule}
    if found.dismissed is not None:
        told["dismissed"] = _dismissed_row(found.dismissed)
    evidence = found.evidence
    if evidence is not None:
        exception = evidence.last_exception
        told["evidence"] = {
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
    return told


def _dismissed_row(one: Dismissal) -> dict[str, Any]:

    return {
        "id": one.id,
        "name": one.rule.name,
        "then": one.rule.then,
        "tools": one.rule.tools,
        "by": one.by,
        "at": format_utc(one.time),
        "reverted": one.reverted,
    }


def replay_row(result: ReplayResult) -> dict[str, Any]:
    return {
        "covered": result.covered,
        "same": result.same,
        "other": result.other,
        "unjudged": result.unjudged,
        "words": result.words,
        "examples": [_decision_row(one) for one in result.examples],
    }


def _decision_row(one: HumanDecision) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(one) | {"arguments": msgspec.Raw(one.arguments)}


def short(text: str) -> str:
    """The same, not endless."""
    whole = line(text)
    return whole if len(whole) <= _MOST_SHOWN else whole[:_MOST_SHOWN] + "…"


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
    config: config_source.ConfigOption = None,
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
        options.reject_options_before_command(context)
        return
    show_list(DecisionHistory(config, node), json=json, irreversible=irreversible, all=False)


@automation.command("list")
def list_suggestions(
    irreversible: Irreversible = False,
    all: Annotated[bool, typer.Option("--all", help="Also those that were dismissed.")] = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show which rules are suggested, and which are in force.

    \b
    Examples:
      interlock automation list
      interlock automation list --all
    """
    show_list(DecisionHistory(config, node), json=json, irreversible=irreversible, all=all)


@automation.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="A suggestion, or a rule by its name.")],
    irreversible: Irreversible = False,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show a rule in words and as config, its evidence, and what it would have decided.

    \b
    Example:
      interlock automation show s1f0c0e2a
    """
    from interlock.automation.replay import replay as replayed

    past = DecisionHistory(config, node)
    found = past.find(id, irreversible=irreversible)
    result = replayed(found.rule, past.history)
    if json:
        output.print_json(row(found) | {"replay": replay_row(result)})
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
    config: config_source.ConfigOption = None,
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
    from interlock.automation.replay import replay as replayed
    from interlock.core.config import load_config

    past = DecisionHistory(config, node)
    # One that is not there is told as such: no rule is called so.
    if os.path.isfile(what) or what.endswith((".yaml", ".yml", ".json")):
        rules = load_config(what).policy.learned
        if not rules:
            output.print_problem(f"{what} has no rules below policy.learned.")
            raise typer.Exit(output.FAILED)
    else:
        rules = [past.find(what, irreversible=irreversible).rule]
    results = [(rule, replayed(rule, past.history)) for rule in rules]
    if json:
        output.print_json([{"rule": rule.name, **replay_row(one)} for rule, one in results])
    else:
        for rule, one in results:
            print(f"{line(rule.name)} {one.words}.")
            print_examples(one)
    if any(one.other for _, one in results):
        raise typer.Exit(output.FAILED)


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
    config: config_source.ConfigOption = None,
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

    from interlock.automation.replay import replay as replayed
    from interlock.core.config.edit import add_learned
    from interlock.core.config.load import read_text
    from interlock.terminal.config_source import write_text

    past = DecisionHistory(config, node)
    path = past.config_path()
    found = past.find(id, irreversible=irreversible)
    if found.evidence is None:
        output.print_note(f"{line(found.rule.name)} is in force already.")
        return
    print_whole(found, replayed(found.rule, past.history))
    output.print_note(_VOID)
    if not _agreed(found.rule, open or [], yes=yes):
        output.print_note("nothing was changed.")
        raise typer.Exit(output.FAILED)
    rule = replace(found.rule, accepted=f"{format_utc(time.time())} by {getpass.getuser()}")
    # Read again: whoever was asked may have taken a while.
    write_text(path, add_learned(read_text(path), rule, str(path)))
    if found.dismissed is not None:
        with past.store() as store:
            store.restore([found.id, found.dismissed.id])
    print(f"{line(rule.name)} is in {path} now.")
    revert = past.meant.selector.format_command(f"automation revert {line(rule.name)}")
    output.print_note(f"`{revert}` takes it back.")


@automation.command()
def revert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule, as it is called.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Take an accepted rule back: humans are asked again. A running node heeds it by itself.

    It counts as dismissed, so it is not suggested again at once.

    \b
    Example:
      interlock automation revert allow-files.write-1f0c0e
    """
    from interlock.automation.replay import replay as replayed
    from interlock.automation.suggestion import id_of
    from interlock.core.config.edit import remove_learned
    from interlock.core.config.load import read_text
    from interlock.errors import InterlockError
    from interlock.terminal.config_source import write_text

    path = config_path(node_discovery.find_local_node(config, node))
    text = remove_learned(read_text(path), name, str(path))
    try:
        past = DecisionHistory(config, node)
        # Before the config, by which a running node notices it: its journal says who did it.
        for rule in past.rules:
            if rule.name == name:
                same = replayed(rule, past.history).same
                past.dismiss(id_of(rule), rule, same, reverted=True)
    except InterlockError as error:
        # It is taken back all the same.
        output.print_note(f"that it is not wanted cannot be remembered: {error.message}")
    write_text(path, text)
    print(f"{line(name)} is in {path} no more: humans are asked again.")
    output.print_note(_VOID)


@automation.command()
def dismiss(
    id: Annotated[str, typer.Argument(metavar="ID", help="The suggestion, or its rule's name.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="It was a mistake: let it be suggested again.")
    ] = False,
    irreversible: Irreversible = False,
    config: config_source.ConfigOption = None,
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
    past = DecisionHistory(config, node)
    if undo:
        meant = [one.id for one in past.dismissed if is_called(one, id)]
        if not meant:
            output.print_problem(f"nothing that was dismissed is called {line(id)} here.")
            raise typer.Exit(output.FAILED)
        with past.store() as store:
            store.restore(meant)
        print(f"{line(id)} may be suggested again.")
        return
    found = past.find(id, irreversible=irreversible)
    if found.evidence is None:
        revert = past.meant.selector.format_command(f"automation revert {line(id)}")
        output.print_problem(f"{line(id)} is in force: `{revert}` takes it back.")
        raise typer.Exit(output.FAILED)
    past.dismiss(found.id, found.rule, found.evidence.agreed)
    least = max(found.evidence.agreed, past.config.section(AutomationConfig).decisions)
    print(f"{line(found.rule.name)} is not suggested before {least} more decisions like these.")
    undo_it = past.meant.selector.format_command(f"automation dismiss --undo {line(found.id)}")
    output.print_note(f"`{undo_it}` brings it back.")


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
        if not output.confirm(f"Let calls through whatever {line(name)} says?"):
            return False
    if yes:
        return True
    if not asked:
        raise typer.BadParameter("nobody can be asked here: look at the rule, then say --yes")
    return output.confirm(f"Accept {line(rule.name)} as shown?")
