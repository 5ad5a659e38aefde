"""What `interlock automation` says: lists, one rule whole, and rows for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from interlock.cli import say
from interlock.cli.automation_past import Found, Past, line

if TYPE_CHECKING:
    from interlock.pipeline.automation.decision import Decided
    from interlock.pipeline.automation.dismissal import Dismissed
    from interlock.pipeline.automation.replay import Replayed

_STYLES: Final = {"allow": "green", "deny": "bold red"}
_MOST_SHOWN: Final = 300


def show_list(past: Past, *, json: bool, irreversible: bool, all: bool) -> None:
    """Suggestions and rules. `all`: also what was dismissed."""
    from rich.text import Text

    every = past.suggestions(irreversible=irreversible)
    found = [one for one in every if all or one.dismissed is None]
    if json:
        say.as_json(
            {
                "decisions": len(past.history),
                "suggestions": [row(Found(one.rule, one)) for one in found],
                "rules": past.rules,
                "dismissed": [_dismissed_row(one) for one in past.dismissed],
            }
        )
        return
    console = say.console()
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


def _why(one: Dismissed) -> str:
    from interlock.pipeline.approval.record import utc

    word = "reverted" if one.reverted else "dismissed"
    return f"{word} {utc(one.time)} by {line(one.by)}"


def _say_more(past: Past, found: int, dismissed: int, *, irreversible: bool) -> None:
    from interlock.pipeline.automation.rule import undoable

    if not past.config.automation.enabled:
        say.note("decisions are not kept: automation.enabled is false.")
    if found:
        say.note("`interlock automation show ID` shows one whole, `accept` accepts it.")
    else:
        say.note(f"no rule is suggested: {_why_none(past)}.")
    if dismissed:
        which = "1 more was" if dismissed == 1 else f"{dismissed} more were"
        say.note(f"{which} dismissed: `interlock automation list --all` shows them.")
    if not irreversible and any(not undoable(one.effect) for one in past.history):
        others = past.suggestions(irreversible=True)
        more = len([one for one in others if one.dismissed is None]) - found
        if more > 0:
            say.note(f"{more} more about what cannot be undone: say --irreversible to see them.")


def _why_none(past: Past) -> str:
    decided, takes = len(past.history), past.config.automation.decisions
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


def print_whole(found: Found, result: Replayed) -> None:
    from rich.text import Text

    from interlock.config.edit_rules import rule_text

    console = say.console()
    console.print(Text(say.printable(found.words or found.rule.name)), soft_wrap=True)
    console.print()
    console.print(Text(say.printable(rule_text(found.rule)), "cyan"), soft_wrap=True)
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


def print_examples(result: Replayed, but: Decided | None = None) -> None:
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
    return short(
        f"{utc(one.time)}  {verdict} by {one.by}: {one.tool} of {one.caller} "
        f"with {one.arguments.decode()}"
    )


def row(found: Found) -> dict[str, Any]:
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


def _dismissed_row(one: Dismissed) -> dict[str, Any]:
    from interlock.pipeline.approval.record import utc

    return {
        "id": one.id,
        "name": one.rule.name,
        "then": one.rule.then,
        "tools": one.rule.tools,
        "by": one.by,
        "at": utc(one.time),
        "reverted": one.reverted,
    }


def replay_row(result: Replayed) -> dict[str, Any]:
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


def short(text: str) -> str:
    """The same, not endless."""
    whole = line(text)
    return whole if len(whole) <= _MOST_SHOWN else whole[:_MOST_SHOWN] + "…"
