"""`interlock policy`: what the rules are, what they make of a call, and whether that is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli import say, where
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.cli.policy_cases import Question, Result
    from interlock.config import Config
    from interlock.pipeline.policy import Policy
    from interlock.pipeline.policy.explain import Explanation, Opinion

policy = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]

_STYLES: Final = {"allow": "green", "confirm": "yellow", "verify": "magenta", "deny": "bold red"}
_EFFECTS: Final = ("read_only", "additive", "mutating", "irreversible")
_DEFAULTS: Final = {
    "safe": "what cannot be undone is confirmed, all else allowed",
    "allow": "everything is allowed",
    "deny": "nothing is allowed but lists",
}
_SELECTORS: Final = ("callers", "roles", "scopes", "tools", "effects", "annotations", "kinds")


@policy.callback()
def _policy() -> None:
    """Show the rules, ask what they make of a call, or test them.

    Of all rules that fit a call the most restrictive decides: allow, confirm, verify, deny.
    """


@policy.command()
def show(config: where.ConfigOption = None, json: Json = False) -> None:
    """Show the rules of the config, the most restrictive first.

    \b
    Example:
      interlock policy show
    """
    loaded, compiled = _compiled(config)
    if json:
        rules = loaded.policy.rules
        say.as_json({"version": compiled.version, "default": compiled.default, "rules": rules})
        return
    from rich.text import Text

    console = say.console()
    ranked = sorted(zip(compiled.rules, loaded.policy.rules, strict=True), key=_rank)
    widest = max((len(rule.name) for rule, _ in ranked), default=0)
    for rule, written in ranked:
        word = rule.action.word
        about = [
            f"{name}: {_shown(getattr(written, name))}"
            for name in _SELECTORS
            if getattr(written, name)
        ]
        about += [f"when: {written.when}"] if written.when else []
        line = Text.assemble(
            (f"{word:<8}", _STYLES[word]),
            say.printable(f"{rule.name:<{widest}}  "),
            say.printable("; ".join(about) or "every tool call"),
        )
        console.print(line, soft_wrap=True)
        if written.reason:
            console.print(Text(f"{'':<8}{'':<{widest}}  {say.printable(written.reason)}", "dim"))
    console.print(f"when no rule fits: {_DEFAULTS[compiled.default]}  (version {compiled.version})")


@policy.command("test")
def try_cases(
    file: Annotated[Path, typer.Argument(help="The cases, as YAML.", show_default=False)],
    config: where.ConfigOption = None,
    json: Json = False,
) -> None:
    """Try cases against the rules; exit code 1 when one comes out otherwise than expected.

    \b
    A file of cases:
      cases:
        - {tool: github.delete_repo, effect: irreversible, caller: ci, expect: deny}
        - {tool: bank.pay, arguments: {amount: 5000}, roles: [clerk], expect: verify, rule: big}
        - {kind: "mcp/request:resources/read:file:///etc/x", expect: deny}

    \b
    Example:
      interlock policy test policy-cases.yaml
    """
    from interlock.cli.policy_cases import read_cases, run_case

    _, compiled = _compiled(config)
    results = [run_case(compiled, case) for case in read_cases(file)]
    failed = [result for result in results if not result.passed]
    if json:
        say.as_json({"policy": compiled.version, "cases": results, "failed": len(failed)})
    else:
        _print_results(results)
    if failed:
        raise typer.Exit(say.FAILED)


@policy.command()
def explain(
    tool: Annotated[
        str,
        typer.Argument(
            metavar="CALL", help="A tool's name, or a kind such as mcp/request:resources/read:URI."
        ),
    ],
    caller: Annotated[str, typer.Option("--caller", help="Who calls.")] = "local",
    role: Annotated[list[str] | None, typer.Option("--role", help="A role of the caller.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="A scope of the caller.")
    ] = None,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="The arguments.")] = "{}",
    effect: Annotated[
        str | None,
        typer.Option("--effect", help=f"What the tool does, if no node is asked: {_EFFECTS[0]}, …"),
    ] = None,
    config: where.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Say what the rules make of a call: which rule decides, which fit too, which nearly do.

    What the tool does to the world is asked of the running node. Without one, say it: --effect.

    \b
    Examples:
      interlock policy explain github.delete_repo --caller ci --role bot
      interlock policy explain bank.pay --args '{"amount": 5000}' --effect mutating
    """
    from interlock.pipeline.policy.explain import explain as explain_call

    compiled = _rules_of(config, node)
    question = _question(tool, caller, role, scope, args, effect, config, node)
    call, asked = question.put()
    found = _about_this(explain_call(compiled, call, asked))
    if json:
        say.as_json({"call": question, "decision": found})
    else:
        _print_explanation(question, found)


def _compiled(config: Path | None) -> tuple[Config, Policy]:
    from interlock.pipeline.policy import Policy

    loaded, _ = where.load_or_default(where.source_if_any(config))
    return loaded, Policy(loaded.policy)


def _rules_of(config: Path | None, node: str | None) -> Policy:
    """The rules of the config. A mistake elsewhere in it does not hide them while its node runs.

    Raises ConfigError.
    """
    from interlock.cli import running
    from interlock.pipeline.policy import Policy

    source = where.source_if_any(config)
    meant = running.meant(config, node)
    problem = meant.problem
    if source is None or (problem is None and meant.source is not None):
        return Policy(meant.config.policy)
    if problem is None:
        # The node at the address is not that of the config: its rules are known to it alone.
        say.note(f"Note: these are the rules of {source.path}; the node may run by others.")
        return Policy(source.load().policy)
    unread = any(not one.path or one.path.startswith("policy") for one in problem.problems)
    if unread or meant.now() is None:
        raise problem
    say.note(f"Note: the node runs by an earlier config: {problem.problems[0]}")
    return Policy(meant.config.policy)


def _about_this(found: Explanation) -> Explanation:
    """Without rules that nearly fit, but are about other tools."""
    from msgspec.structs import replace

    nearly = tuple(one for one in found.nearly if not one.misses[0].startswith("tools: "))
    return replace(found, nearly=nearly)


# -- the question


def _question(
    tool: str,
    caller: str,
    roles: list[str] | None,
    scopes: list[str] | None,
    args: str,
    effect: str | None,
    config: Path | None,
    node: str | None,
) -> Question:
    import msgspec

    from interlock.cli.policy_cases import Question
    from interlock.errors import ProtocolError

    try:
        arguments = msgspec.json.decode(args, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise typer.BadParameter(f"--args must be a JSON object: {exc}") from None
    if effect is not None and effect not in _EFFECTS:
        raise typer.BadParameter(f"--effect must be one of {', '.join(_EFFECTS)}")
    who = Question(caller=caller, roles=roles or [], scopes=scopes or None, arguments=arguments)
    if ":" in tool:
        asked = msgspec.structs.replace(who, kind=tool, **({"effect": effect} if effect else {}))
        try:
            asked.put()
        except ProtocolError as exc:
            raise typer.BadParameter(exc.message) from None
        return asked
    if effect is not None:
        return msgspec.structs.replace(who, tool=tool, effect=effect)
    from interlock.cli.event_loop import run

    known = run(_ask_node(tool, config, node))
    return msgspec.structs.replace(who, **known)


async def _ask_node(tool: str, config: Path | None, node: str | None) -> dict[str, Any]:
    """What the running node knows of a tool."""
    from interlock.cli import running
    from interlock.cli.listing import read_listing, same_name
    from interlock.cli.reach import reach
    from interlock.pipeline.policy.reading import annotations_of

    meant = running.meant(config, node)
    if meant.now() is None:
        raise typer.BadParameter(
            f"no node runs that could be asked about {tool}; say what it does with --effect"
        )
    async with reach(config, node=node) as reached:
        definitions = await reached.list_tools()
        listed = read_listing(definitions, reached.config)
    for definition, one in zip(definitions, listed, strict=True):
        if same_name(one.name, tool):
            return {
                "tool": one.name,
                "effect": one.effect,
                "server": one.server,
                "annotations": annotations_of(definition) or {},
            }
    raise typer.BadParameter(f"the node has no tool {tool!r}; `interlock tools` shows them")


# -- the answer


def _print_results(results: list[Result]) -> None:
    from rich.text import Text

    console = say.console()
    for one in results:
        came = one.action + (f" by {one.rule}" if one.rule else "")
        if one.passed:
            console.print(Text.assemble(("ok    ", "green"), say.printable(one.case), "  ", came))
            continue
        console.print(Text.assemble(("wrong ", "bold red"), say.printable(one.case)))
        console.print(Text.assemble("      - expected ", (one.expected, "green")))
        console.print(Text.assemble("      + came     ", (came, "red")))
    failed = sum(not one.passed for one in results)
    counted = f"{len(results)} {'case' if len(results) == 1 else 'cases'}"
    console.print(f"{counted}, {failed} wrong" if failed else f"{counted}, all as expected")


def _print_explanation(question: Question, found: Explanation) -> None:
    from rich.text import Text

    console = say.console()
    what = f"{question.tool}  ({question.effect})" if question.tool else f"{question.kind}"
    who = question.caller
    if question.roles:
        who += f", roles {', '.join(question.roles)}"
    if question.scopes is not None:
        who += f", scopes {', '.join(question.scopes)}"
    console.print(Text(say.printable(f"{what}, asked by {who}")))
    console.print(
        Text.assemble((found.action, _STYLES[found.action]), say.printable(f"  by {found.rule}"))
    )
    if found.reason:
        console.print(Text(say.printable(f"  {found.reason}")))
    fits_too = [one for one in found.fitting if one.rule != found.rule]
    for one in found.fitting:
        if one.rule == found.rule and one.note:
            console.print(Text(say.printable(f"  {one.note}"), "dim"))
    _print_opinions("fit, too:", fits_too)
    _print_opinions("would fit but for one thing:", found.nearly)


def _print_opinions(title: str, opinions: list[Opinion] | tuple[Opinion, ...]) -> None:
    from rich.text import Text

    if not opinions:
        return
    console = say.console()
    console.print(title)
    for one in opinions:
        why = one.misses[0] if one.misses else one.note
        console.print(
            Text.assemble(
                (f"  {one.action:<8}", _STYLES[one.action]),
                say.printable(one.rule),
                (say.printable(f"  {why}" if why else ""), "dim"),
            ),
            soft_wrap=True,
        )


def _rank(pair: Any) -> tuple[int, int]:
    rule = pair[0]
    return (-rule.action, rule.number)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        import msgspec

        return ", ".join(
            f"{key} = {msgspec.json.encode(each).decode()}" for key, each in value.items()
        )
    return ", ".join(value)
