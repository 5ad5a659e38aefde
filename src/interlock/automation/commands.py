"""`interlock automation`: list suggested rules with their evidence, replay them, accept them, and
revert them.

Nothing here goes over the network: accepting a rule writes it into the config, which only its owner
can do.
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


# -- Data: stored decisions, rules in force, suggestions and dismissals.


def to_one_line(text: str) -> str:
    """Return a text of others on one line, without control characters."""
    return " ".join(output.sanitize(text).split())


class RuleCandidate:
    """A suggestion, or a rule that is in force."""

    def __init__(self, rule: LearnedRule, suggestion: Suggestion | None = None) -> None:
        self.rule = rule
        self.id = rule.name if suggestion is None else suggestion.id
        self.description = rule.reason if suggestion is None else suggestion.description
        self.evidence = None if suggestion is None else suggestion.evidence
        self.dismissal = None if suggestion is None else suggestion.dismissed


def matches_id(candidate: Suggestion | Dismissal, id: str) -> bool:
    """Return whether an id is that of a suggestion, or the name of its rule."""
    return id in (candidate.id, candidate.rule.name)


class DecisionHistory:
    """The stored decisions of a node, with its rules and dismissals. Raises ConfigError,
    InterlockError."""

    def __init__(self, config: Path | None, node: str | None) -> None:
        self.target = node_discovery.find_local_node(config, node)
        self.config: Config = self.target.config
        with self.store() as store:
            self.history: list[HumanDecision] = store.history()
            self.dismissals: list[Dismissal] = store.read_dismissals()

    @contextmanager
    def store(self) -> Iterator[DecisionStore]:
        """Open the store of decisions."""
        from interlock.automation.store import DecisionStore, decisions_path

        store = DecisionStore(
            decisions_path(self.config, os.environ, self.target.base_dir),
            deliver=lambda callback: callback(),
            settings=self.config.section(AutomationConfig),
            wall_clock=time.time,
        )
        try:
            yield store
        finally:
            store.close()

    def dismiss(self, id: str, rule: LearnedRule, agreed: int, *, reverted: bool = False) -> None:
        """Store a dismissal.

        Args:
            agreed: the number of decisions that support the rule.
        """
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
        return config_path(self.target)

    @property
    def rules(self) -> list[LearnedRule]:
        return self.config.policy.learned

    def suggestions(self, *, irreversible: bool) -> list[Suggestion]:
        """Return all suggestions, including dismissed ones."""
        from interlock.automation.suggestion import suggest

        return suggest(
            self.history,
            self.config.section(AutomationConfig),
            accepted=self.rules,
            irreversible=irreversible,
            dismissed=self.dismissals,
        )

    def count_covered(self) -> int:
        """Return how many stored decisions the rules in force match."""
        from interlock.automation.rule import CompiledRule, read_case

        rules = [CompiledRule(rule) for rule in self.rules]
        cases = map(read_case, self.history) if rules else ()
        return sum(any(rule.matches_decision(case) for rule in rules) for case in cases)

    def find(self, id: str, *, irreversible: bool) -> RuleCandidate:
        """Return the suggestion or rule with an id or name. If there is none, print the error
        and exit."""
        for rule in self.rules:
            if rule.name == id:
                return RuleCandidate(rule)
        matches = [
            suggestion
            for suggestion in self.suggestions(irreversible=irreversible)
            if matches_id(suggestion, id)
        ]
        if matches:
            return RuleCandidate(matches[0].rule, matches[0])
        if not irreversible and any(
            matches_id(suggestion, id) for suggestion in self.suggestions(irreversible=True)
        ):
            output.print_problem(
                f"{to_one_line(id)} also decides calls that cannot be undone. To include such "
                "suggestions, add --irreversible."
            )
        else:
            output.print_problem(
                f"{to_one_line(id)} was not found. Suggestions change with every decision. "
                "List the current ones: "
                f"`{self.target.selector.format_command('automation list')}`."
            )
        raise typer.Exit(output.FAILED)


def config_path(target: node_discovery.TargetNode) -> Path:
    if target.source is None or target.source.path is None:
        from interlock.core.config import ConfigError

        raise ConfigError.of(
            "rules are stored in a config, but the node has none", "name a config with --config"
        )
    return target.source.path


# -- Output: lists, one rule, and rows for programs.

_ACTION_STYLES: Final = {"allow": "green", "deny": "bold red"}
_MAX_TEXT_LENGTH: Final = 300


def print_list(history: DecisionHistory, *, json: bool, irreversible: bool, all: bool) -> None:
    """Print suggestions and rules.

    Args:
        all: also print dismissed suggestions.
    """
    from rich.text import Text

    all_suggestions = history.suggestions(irreversible=irreversible)
    suggestions = [
        suggestion for suggestion in all_suggestions if all or suggestion.dismissed is None
    ]
    if json:
        output.print_json(
            {
                "decisions": len(history.history),
                "suggestions": [
                    candidate_row(RuleCandidate(suggestion.rule, suggestion))
                    for suggestion in suggestions
                ],
                "rules": history.rules,
                "dismissed": [_dismissal_row(dismissal) for dismissal in history.dismissals],
            }
        )
        return
    console = output.create_console()
    for suggestion in suggestions:
        then = suggestion.rule.then
        text = Text.assemble(
            f"{suggestion.id}  ",
            (f"{then:<6}", _ACTION_STYLES[then]),
            shorten(suggestion.description),
        )
        console.print(text, soft_wrap=True)
        evidence = shorten(suggestion.evidence.summary)
        console.print(Text(f"           {evidence}", "dim"), soft_wrap=True)
    if history.rules:
        console.print("in force:")
    for rule in history.rules:
        text = Text.assemble(
            "  ", (f"{rule.then:<6}", _ACTION_STYLES[rule.then]), to_one_line(rule.name),
            (f"  accepted {to_one_line(rule.accepted)}" if rule.accepted else "", "dim"),
        )  # fmt: skip
        console.print(text, soft_wrap=True)
    if all and history.dismissals:
        console.print("dismissed:")
        for dismissal in history.dismissals:
            then = dismissal.rule.then
            text = Text.assemble(
                f"  {dismissal.id}  ", (f"{then:<6}", _ACTION_STYLES[then]),
                to_one_line(dismissal.rule.name),
                (f"  {_describe_dismissal(dismissal)}", "dim"),
            )  # fmt: skip
            console.print(text, soft_wrap=True)
    hidden = len(all_suggestions) - len(suggestions)
    _print_hints(history, len(suggestions), hidden, irreversible=irreversible)


def _describe_dismissal(dismissal: Dismissal) -> str:
    event = "reverted" if dismissal.reverted else "dismissed"
    return f"{event} {format_utc(dismissal.time)} by {to_one_line(dismissal.by)}"


def _print_hints(
    history: DecisionHistory, suggestion_count: int, dismissed_count: int, *, irreversible: bool
) -> None:
    from interlock.automation.rule import is_reversible

    if not history.config.section(AutomationConfig).enabled:
        output.print_note("Decisions are not stored: automation.enabled is false.")
    if suggestion_count:
        show, accept = map(
            history.target.selector.format_command, ("automation show ID", "automation accept ID")
        )
        output.print_note(f"Show one: `{show}`. Accept one: `{accept}`.")
    else:
        output.print_note(f"No suggestions: {_explain_no_suggestion(history)}.")
    if dismissed_count:
        subject = (
            "1 suggestion is" if dismissed_count == 1 else f"{dismissed_count} suggestions are"
        )
        command = history.target.selector.format_command("automation list --all")
        output.print_note(f"{subject} dismissed. Show all: `{command}`.")
    if not irreversible and any(not is_reversible(past.effect) for past in history.history):
        all_suggestions = history.suggestions(irreversible=True)
        visible = [each for each in all_suggestions if each.dismissed is None]
        irreversible_count = len(visible) - suggestion_count
        if irreversible_count > 0:
            output.print_note(
                f"{irreversible_count} more for irreversible calls. Add --irreversible to show "
                "them."
            )


def _explain_no_suggestion(history: DecisionHistory) -> str:
    total, required = len(history.history), history.config.section(AutomationConfig).decisions
    stored = f"{total} {'decision is' if total == 1 else 'decisions are'} stored"
    covered = history.count_covered()
    if not covered:
        return f"{stored}, and a suggestion requires {required} equal decisions"
    if covered == total:
        return f"{stored}, and the rules in force cover all of them"
    return (
        f"{stored}, the rules in force cover {covered} of them, and a suggestion requires "
        f"{required} equal decisions among the others"
    )


def print_candidate(candidate: RuleCandidate, result: ReplayResult) -> None:
    from rich.text import Text

    from interlock.core.config.edit import rule_text

    console = output.create_console()
    title = candidate.description or candidate.rule.name
    console.print(Text(output.sanitize(title)), soft_wrap=True)
    console.print()
    console.print(Text(output.sanitize(rule_text(candidate.rule)), "cyan"), soft_wrap=True)
    rule = candidate.rule
    if candidate.evidence is not None:
        evidence = to_one_line(candidate.evidence.summary)
        console.print(Text(f"Evidence: {evidence}."), soft_wrap=True)
        uncounted = candidate.evidence.agreed - candidate.evidence.counted
        if uncounted:
            console.print(
                f"          {uncounted} of them do not count: at most 5 decisions per minute do.",
                soft_wrap=True,
            )
        if candidate.evidence.last_exception is not None:
            console.print(
                Text(f"Last exception: {_describe_decision(candidate.evidence.last_exception)}"),
                soft_wrap=True,
            )
    elif rule.accepted:
        console.print(Text(f"Accepted {to_one_line(rule.accepted)}."), soft_wrap=True)
    if candidate.dismissal is not None:
        status = _describe_dismissal(candidate.dismissal)
        console.print(Text(f"Status: {status}."), soft_wrap=True)
    console.print(Text(f"Replay: the rule {result.summary}."), soft_wrap=True)
    print_examples(
        result, None if candidate.evidence is None else candidate.evidence.last_exception
    )


def print_examples(result: ReplayResult, printed: HumanDecision | None = None) -> None:
    """Print decisions against a rule.

    Args:
        printed: A decision that is printed already.
    """
    for decision in result.examples:
        if decision != printed:
            print(f"  {_describe_decision(decision)}")
    remaining = result.other - len(result.examples)
    if remaining > 0:
        print(f"  and {remaining} more")


def _describe_decision(decision: HumanDecision) -> str:
    verdict = "approved" if decision.verdict == "approve" else "rejected"
    return shorten(
        f"{format_utc(decision.time)}  {verdict} by {decision.by}: {decision.tool} of "
        f"{decision.caller} with {decision.arguments.decode()}"
    )


def candidate_row(candidate: RuleCandidate) -> dict[str, Any]:
    members: dict[str, Any] = {
        "id": candidate.id,
        "description": candidate.description,
        "rule": candidate.rule,
    }
    if candidate.dismissal is not None:
        members["dismissed"] = _dismissal_row(candidate.dismissal)
    evidence = candidate.evidence
    if evidence is not None:
        exception = evidence.last_exception
        members["evidence"] = {
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
    return members


def _dismissal_row(dismissal: Dismissal) -> dict[str, Any]:
    return {
        "id": dismissal.id,
        "name": dismissal.rule.name,
        "then": dismissal.rule.then,
        "tools": dismissal.rule.tools,
        "by": dismissal.by,
        "at": format_utc(dismissal.time),
        "reverted": dismissal.reverted,
    }


def replay_row(result: ReplayResult) -> dict[str, Any]:
    return {
        "covered": result.covered,
        "same": result.same,
        "other": result.other,
        "unjudged": result.unjudged,
        "summary": result.summary,
        "examples": [_decision_row(decision) for decision in result.examples],
    }


def _decision_row(decision: HumanDecision) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(decision) | {"arguments": msgspec.Raw(decision.arguments)}


def shorten(text: str) -> str:
    """Return a text of others on one line, cut to a maximum length."""
    one_line = to_one_line(text)
    return one_line if len(one_line) <= _MAX_TEXT_LENGTH else one_line[:_MAX_TEXT_LENGTH] + "…"


automation = typer.Typer(invoke_without_command=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IrreversibleOption = Annotated[
    bool, typer.Option("--irreversible", help="Include rules for irreversible calls.")
]
_PENDING_NOTE: Final = (
    "This changes the policy: calls that are waiting for approval now can no longer be approved, "
    "and must be requested again."
)


@automation.callback()
def overview(
    context: typer.Context,
    irreversible: IrreversibleOption = False,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """Suggest rules from the decisions of operators: list, replay, accept and revert them.

    Calls that operators repeatedly decided in the same way can be decided by a rule. The rule is
    suggested here as text and as config. It applies after an operator accepts it, and can be
    reverted. Rules never cover irreversible calls, unless you add --irreversible.

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
    history = DecisionHistory(config, node)
    print_list(history, json=json, irreversible=irreversible, all=False)


@automation.command("list")
def list_suggestions(
    irreversible: IrreversibleOption = False,
    all: Annotated[bool, typer.Option("--all", help="Include dismissed suggestions.")] = False,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """List suggested rules and rules in force.

    \b
    Examples:
      interlock automation list
      interlock automation list --all
    """
    print_list(DecisionHistory(config, node), json=json, irreversible=irreversible, all=all)


@automation.command()
def show(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a suggestion, or the name of a rule.")
    ],
    irreversible: IrreversibleOption = False,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """Show a rule as text and as config, its evidence, and what it would have decided.

    \b
    Example:
      interlock automation show s1f0c0e2a
    """
    from interlock.automation.replay import replay as replay_rule

    history = DecisionHistory(config, node)
    candidate = history.find(id, irreversible=irreversible)
    result = replay_rule(candidate.rule, history.history)
    if json:
        output.print_json(candidate_row(candidate) | {"replay": replay_row(result)})
    else:
        print_candidate(candidate, result)


@automation.command()
def replay(
    target: Annotated[
        str,
        typer.Argument(
            metavar="ID-or-FILE",
            help="The id of a suggestion, the name of a rule, or a config with learned rules.",
        ),
    ],
    irreversible: IrreversibleOption = False,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """Replay rules over all stored decisions. Changes nothing.

    Exit code 1 if a rule disagrees with a decision.

    \b
    Examples:
      interlock automation replay s1f0c0e2a
      interlock automation replay my-rules.yaml
    """
    from interlock.automation.replay import replay as replay_rule
    from interlock.core.config import load_config

    history = DecisionHistory(config, node)
    # For a missing file, the message is that no rule has this name.
    if os.path.isfile(target) or target.endswith((".yaml", ".yml", ".json")):
        rules = load_config(target).policy.learned
        if not rules:
            output.print_problem(f"{target} has no rules under policy.learned.")
            raise typer.Exit(output.FAILED)
    else:
        rules = [history.find(target, irreversible=irreversible).rule]
    results = [(rule, replay_rule(rule, history.history)) for rule in rules]
    if json:
        output.print_json([{"rule": rule.name, **replay_row(result)} for rule, result in results])
    else:
        for rule, result in results:
            print(f"{to_one_line(rule.name)} {result.summary}.")
            print_examples(result)
    if any(result.other for _, result in results):
        raise typer.Exit(output.FAILED)


@automation.command()
def accept(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the suggestion.")],
    irreversible: Annotated[
        bool,
        typer.Option("--irreversible", help="Allow a rule that covers irreversible calls."),
    ] = False,
    open: Annotated[
        list[str] | None,
        typer.Option(
            "--open", metavar="NAME", help="Allow any value of this argument. May be repeated."
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Skip the confirmation. Open arguments still require --open."
        ),
    ] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept a suggested rule: write it into the config. Shows it and asks for confirmation.

    Each argument that may have any value is confirmed by name, or named with --open. A running node
    applies the rule at once. Undo it with `interlock automation revert NAME`.

    \b
    Examples:
      interlock automation accept s1f0c0e2a
      interlock automation accept s1f0c0e2a --yes --open content
    """
    from msgspec.structs import replace

    from interlock.automation.replay import replay as replay_rule
    from interlock.core.config.edit import add_learned
    from interlock.core.config.load import read_text
    from interlock.terminal.config_source import write_text

    history = DecisionHistory(config, node)
    path = history.config_path()
    candidate = history.find(id, irreversible=irreversible)
    if candidate.evidence is None:
        output.print_note(f"{to_one_line(candidate.rule.name)} is already in force.")
        return
    print_candidate(candidate, replay_rule(candidate.rule, history.history))
    output.print_note(_PENDING_NOTE)
    if not _confirm(candidate.rule, open or [], yes=yes):
        output.print_note("Nothing was changed.")
        raise typer.Exit(output.FAILED)
    rule = replace(candidate.rule, accepted=f"{format_utc(time.time())} by {getpass.getuser()}")
    # Read the config again: it may have changed during the prompt.
    write_text(path, add_learned(read_text(path), rule, str(path)))
    if candidate.dismissal is not None:
        with history.store() as store:
            store.restore([candidate.id, candidate.dismissal.id])
    print(f"Added {to_one_line(rule.name)} to {path}.")
    revert = history.target.selector.format_command(f"automation revert {to_one_line(rule.name)}")
    output.print_note(f"Undo: `{revert}`.")


@automation.command()
def revert(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the rule.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Revert an accepted rule: operators decide again. A running node applies it at once.

    The rule counts as dismissed, so it is not suggested again soon.

    \b
    Example:
      interlock automation revert allow-files.write-1f0c0e
    """
    from interlock.automation.replay import replay as replay_rule
    from interlock.automation.suggestion import rule_id
    from interlock.core.config.edit import remove_learned
    from interlock.core.config.load import read_text
    from interlock.errors import InterlockError
    from interlock.terminal.config_source import write_text

    path = config_path(node_discovery.find_local_node(config, node))
    text = remove_learned(read_text(path), name, str(path))
    try:
        history = DecisionHistory(config, node)
        # Store the dismissal before the config changes: the node's journal then names the operator.
        for rule in history.rules:
            if rule.name == name:
                agreed = replay_rule(rule, history.history).same
                history.dismiss(rule_id(rule), rule, agreed, reverted=True)
    except InterlockError as error:
        # The rule is reverted in any case.
        output.print_note(f"The dismissal cannot be stored: {error.message}")
    write_text(path, text)
    print(f"Removed {to_one_line(name)} from {path}. Operators decide such calls again.")
    output.print_note(_PENDING_NOTE)


@automation.command()
def dismiss(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the suggestion, or its rule's name.")
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Undo a dismissal.")] = False,
    irreversible: IrreversibleOption = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Dismiss a suggestion. It is hidden, together with others for the same decisions, until
    operators have made as many new decisions as there were. The store keeps who dismissed it, and
    when.

    \b
    Examples:
      interlock automation dismiss s1f0c0e2a
      interlock automation list --all
      interlock automation dismiss --undo s1f0c0e2a
    """
    history = DecisionHistory(config, node)
    if undo:
        ids = [dismissal.id for dismissal in history.dismissals if matches_id(dismissal, id)]
        if not ids:
            output.print_problem(f"no dismissed suggestion has the id {to_one_line(id)}.")
            raise typer.Exit(output.FAILED)
        with history.store() as store:
            store.restore(ids)
        print(f"{to_one_line(id)} may be suggested again.")
        return
    candidate = history.find(id, irreversible=irreversible)
    if candidate.evidence is None:
        revert = history.target.selector.format_command(f"automation revert {to_one_line(id)}")
        output.print_problem(f"{to_one_line(id)} is in force. Revert it: `{revert}`.")
        raise typer.Exit(output.FAILED)
    history.dismiss(candidate.id, candidate.rule, candidate.evidence.agreed)
    required = max(candidate.evidence.agreed, history.config.section(AutomationConfig).decisions)
    name = to_one_line(candidate.rule.name)
    print(f"Dismissed {name} until there are {required} more such decisions.")
    undo_it = history.target.selector.format_command(
        f"automation dismiss --undo {to_one_line(candidate.id)}"
    )
    output.print_note(f"Undo: `{undo_it}`.")


def _confirm(rule: LearnedRule, confirmed: list[str], *, yes: bool) -> bool:
    """Ask whether to accept the rule, and each argument that it leaves open."""
    for name in confirmed:
        if name not in rule.open:
            raise typer.BadParameter(
                f"{to_one_line(rule.name)} does not leave {to_one_line(name)} open. Remove --open."
            )
    unconfirmed = [name for name in rule.open if name not in confirmed]
    is_interactive = not yes and sys.stdin.isatty()
    if unconfirmed and not is_interactive:
        flags = " ".join(f"--open {shlex.quote(to_one_line(name))}" for name in unconfirmed)
        raise typer.BadParameter(
            f"This rule allows calls with any value of some arguments. To allow this, add {flags}."
        )
    for name in unconfirmed:
        if not output.confirm(f"Allow calls with any value of {to_one_line(name)}?"):
            return False
    if yes:
        return True
    if not is_interactive:
        raise typer.BadParameter(
            "Cannot ask for confirmation without a terminal. Check the rule, then add --yes."
        )
    return output.confirm(f"Accept {to_one_line(rule.name)} as shown above?")
