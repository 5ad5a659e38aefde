"""`interlock policy`: what the rules are, what they make of a call, and whether that is right."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer
import yaml
from msgspec import Meta, Struct, field

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.config import ConfigError
from interlock.core.config.problems import quoted
from interlock.core.config.trust import Action, EffectName
from interlock.errors import InterlockError, ProtocolError
from interlock.primitives.text import format_count
from interlock.protocol.kinds import MessageKind, read_kind, request_kind
from interlock.protocol.mcp import LATEST_STATELESS, TOOLS_CALL, Era
from interlock.terminal import config_source, output
from interlock.terminal.node_discovery import NodeOption
from interlock.trust.policy import Policy
from interlock.trust.policy.attributes import spellings
from interlock.trust.policy.rules import PolicyRequest

if TYPE_CHECKING:
    from interlock.core.config import Config
    from interlock.terminal import node_discovery
    from interlock.trust.policy import Policy
    from interlock.trust.policy.explanation import Explanation, RuleMatch


# -- Cases for `interlock policy test`: what is asked for, by whom, and what must come of it.

_FORM = "write cases: with a list of them, such as - {tool: github.delete_repo, expect: deny}"
_KINDS = {
    "roles": "write a list: [clerk]",
    "scopes": "write a list: [read]",
    "arguments": "write keys and values: {amount: 5000}",
    "annotations": "write keys and values: {destructiveHint: true}",
}
_HERE = Client(Era.STATELESS, LATEST_STATELESS, "interlock-cli")


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a caller asks for."""

    tool: Annotated[str, Meta(min_length=1)] | None = None
    kind: Annotated[str, Meta(min_length=1)] | None = None
    effect: EffectName = "mutating"
    server: str = ""
    annotations: dict[str, Any] = field(default_factory=dict)
    caller: str = "local"
    roles: list[str] = field(default_factory=list)
    scopes: list[str] | None = None
    above: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def put(self) -> tuple[Call, PolicyRequest]:
        """As the policy sees it. Raises ProtocolError for a kind that is none."""
        kind = MessageKind("", TOOLS_CALL, self.tool) if self.tool else read_kind(self.kind or "")
        call = Call(
            kind.method, "cli", Credentials("local"), _HERE,
            name=kind.context, arguments=msgspec.json.encode(self.arguments),
        )  # fmt: skip
        scopes = None if self.scopes is None else tuple(self.scopes)
        call.caller = Caller(
            self.caller, roles=tuple(self.roles), scopes=scopes, parent_caller=self.above
        )
        is_tool = kind.method == TOOLS_CALL
        call.effect = self.effect if is_tool else ""
        call.upstream = self.server or (kind.context.partition(".")[0] if is_tool else "")
        contexts = spellings(kind.context)
        asked = PolicyRequest(
            (tuple(request_kind(kind.method, context) for context in contexts),),
            (kind.context or "?") if is_tool else "",
            call.effect,
            call.upstream,
            self.annotations,
        )
        return call, asked


class Case(Question, frozen=True, kw_only=True):
    """A question, and the right answer."""

    expect: Action
    rule: str | None = None
    """Which rule must decide, where that matters."""
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or f"{self.caller}: {self.tool or self.kind}"


class Result(Struct, frozen=True):
    """What became of a case."""

    case: str
    expected: str
    action: str
    rule: str
    passed: bool


def read_cases(path: Path) -> list[Case]:
    """The cases in a file. Raises ConfigError that says what is wrong with it, and where."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError.of(f"{path} cannot be read: {exc.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise ConfigError.of(f"{path}: {' '.join(str(exc).split())}", _FORM) from None
    listed = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ConfigError.of(f"{path}: there are no cases in it", _FORM)
    others = [str(key) for key in document if key != "cases"]
    if others:
        raise ConfigError.of(f"{path}: {others[0]}: unknown key", "only cases: stands here")
    return [_read_case(path, number, one) for number, one in enumerate(listed)]


def _read_case(path: Path, number: int, given: Any) -> Case:
    place = f"{path}: cases[{number}]"
    if not isinstance(given, dict):
        raise ConfigError.of(f"{place} is no case", _FORM)
    named = given.get("name") or given.get("tool") or given.get("kind")
    place += f" ({named})" if isinstance(named, str) else ""
    keys = [one.name for one in msgspec.structs.fields(Case)]
    for key in map(str, given):
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"the keys are {', '.join(keys)}"
            raise ConfigError.of(f"{place}: {key}: unknown key", hint)
    if "expect" not in given:
        raise ConfigError.of(f"{place}: expect is missing", f"add one of {_words(Action)}")
    try:
        case = msgspec.convert(given, Case)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise ConfigError.of(*_complaint(place, given, str(exc))) from None
    if (case.tool is None) is (case.kind is None):
        raise ConfigError.of(f"{place} must have either tool or kind", "add or remove one")
    try:
        case.put()
    except ProtocolError as exc:
        raise ConfigError.of(f"{place}: kind: {exc.message}") from None
    return case


def _complaint(place: str, given: dict[str, Any], text: str) -> tuple[str, str]:
    """What is wrong with one value, and what to write instead."""
    what, _, where = text.partition(" - at `$.")
    key = re.split(r"[.\[`]", where)[0] or "?"
    words = {"expect": _words(Action), "effect": _words(EffectName)}.get(key)
    value = given.get(key)
    if words is None:
        return f"{place}: {key}: {what[:1].lower()}{what[1:]}", _KINDS.get(key, "")
    close = difflib.get_close_matches(str(value), words.split(", "), n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"write one of {words}"
    return f"{place}: {key}: {quoted(str(value))} is none of {words}", hint


def _words(literal: Any) -> str:
    return ", ".join(get_args(literal))


def run_case(policy: Policy, case: Case) -> Result:
    call, asked = case.put()
    try:
        found = policy.judge_as(call, asked)
        action, rule = found.action.word, found.rule
    except InterlockError as refused:
        action, rule = refused.failure.name, ""
    passed = action == case.expect and case.rule in (None, rule)
    expected = case.expect if case.rule is None else f"{case.expect} by {case.rule}"
    return Result(case.title, expected, action, rule, passed)


policy = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]

_STYLES: Final = {"allow": "green", "confirm": "yellow", "verify": "magenta", "deny": "bold red"}
_EFFECTS: Final = ("read_only", "additive", "mutating", "irreversible")
_DEFAULTS: Final = {
    "safe": "what cannot be undone is confirmed, all else allowed",
    "allow": "everything is allowed",
    "deny": "nothing is allowed but lists",
}


@policy.callback()
def _policy() -> None:
    """Show the rules, ask what they make of a call, or test them.

    Of all rules that fit a call the most restrictive decides: allow, confirm, verify, deny.
    """


@policy.command()
def show(config: config_source.ConfigOption = None, json: Json = False) -> None:
    """Show the rules of the config, the most restrictive first.

    \b
    Example:
      interlock policy show
    """
    loaded, compiled = _compiled(config)
    if json:
        rules = loaded.policy.rules
        output.print_json(
            {"version": compiled.version, "default": compiled.default, "rules": rules}
        )
        return
    from rich.text import Text

    console = output.create_console()
    ranked = sorted(zip(compiled.rules, loaded.policy.rules, strict=True), key=_rank)
    widest = max((len(rule.name) for rule, _ in ranked), default=0)
    for rule, written in ranked:
        word = rule.action.word
        about = [f"{name}: {_shown(value)}" for name, value in written.selectors().items()]
        line = Text.assemble(
            (f"{word:<8}", _STYLES[word]),
            output.sanitize(f"{rule.name:<{widest}}  "),
            output.sanitize("; ".join(about) or "every tool call"),
        )
        console.print(line, soft_wrap=True)
        if written.reason:
            console.print(Text(f"{'':<8}{'':<{widest}}  {output.sanitize(written.reason)}", "dim"))
    console.print(f"when no rule fits: {_DEFAULTS[compiled.default]}  (version {compiled.version})")


@policy.command("test")
def try_cases(
    file: Annotated[Path, typer.Argument(help="The cases, as YAML.", show_default=False)],
    config: config_source.ConfigOption = None,
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

    _, compiled = _compiled(config)
    results = [run_case(compiled, case) for case in read_cases(file)]
    failed = [result for result in results if not result.passed]
    if json:
        output.print_json({"policy": compiled.version, "cases": results, "failed": len(failed)})
    else:
        _print_results(results)
    if failed:
        raise typer.Exit(output.FAILED)


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
    config: config_source.ConfigOption = None,
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
    from interlock.trust.policy.explanation import explain as explain_call

    compiled = _rules_of(config, node)
    question = _question(tool, caller, role, scope, args, effect, config, node)
    call, asked = question.put()
    found = _about_this(explain_call(compiled, call, asked))
    if json:
        output.print_json({"call": question, "decision": found})
    else:
        _print_explanation(question, found)


def _compiled(config: Path | None) -> tuple[Config, Policy]:
    from interlock.trust.policy import Policy

    loaded, _ = config_source.load_or_default(config_source.find_source_or_none(config))
    return loaded, Policy(loaded.policy)


def _rules_of(config: Path | None, node: str | None) -> Policy:
    """The rules of the config, or those of the node at the address. A mistake elsewhere in the
    config does not hide them while its node runs.

    Raises ConfigError, InterlockError.
    """
    from interlock.terminal import node_discovery
    from interlock.trust.policy import Policy

    target = node_discovery.find_node(config, node)
    problem = target.config_error
    if node is not None and target.source is None:
        return _rules_there(target, config_source.find_source_or_none(config))
    if problem is None:
        return Policy(target.config.policy)
    unread = any(not one.path or one.path.startswith("policy") for one in problem.problems)
    if unread or target.fetch_summary() is None:
        raise problem
    output.print_note(f"Note: the node runs by an earlier config: {problem.problems[0]}")
    return Policy(target.config.policy)


def _rules_there(
    target: node_discovery.TargetNode, source: config_source.ConfigSource | None
) -> Policy:
    """The rules of a node whose config was not found by its address: those that have its version.

    Raises ConfigError, InterlockError.
    """
    from interlock.core.config import Config
    from interlock.errors import CONFIG, InterlockError
    from interlock.terminal import node_discovery
    from interlock.trust.policy import Policy

    now = target.fetch_summary()
    if now is None:
        raise node_discovery.not_running_error(target, named=True)
    # A node without a config, such as `up --demo`, has the default rules.
    known = [Config()] if source is None else [source.load(), Config()]
    for rules in (Policy(one.policy) for one in known):
        if rules.version == now.policy:
            return rules
    other = "" if source is None else f", and the rules of {source.path} are not its rules"
    raise InterlockError(
        CONFIG,
        f"the rules of the node at {target.config.listen} are in its config{other}. "
        "Name that config instead: --config FILE",
    )


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
    from interlock.terminal.event_loop import run

    known = run(_ask_node(tool, arguments, config, node))
    return msgspec.structs.replace(who, **known)


async def _ask_node(
    tool: str, arguments: dict[str, Any], config: Path | None, node: str | None
) -> dict[str, Any]:
    """What the running node knows of a tool."""
    from interlock.terminal import node_discovery
    from interlock.terminal.node_client import connect_to_node
    from interlock.terminal.tool_table import is_same_name, read_listing
    from interlock.trust.policy.attributes import annotations_of

    target = node_discovery.find_node(config, node)
    if target.fetch_summary() is None:
        raise typer.BadParameter(
            f"no node runs that could be asked about {tool}; say what it does with --effect"
        )
    async with connect_to_node(config, node=node) as reached:
        definitions = await reached.list_tools()
        listed = read_listing(definitions, reached.config)
    for definition, one in zip(definitions, listed, strict=True):
        if is_same_name(one.name, tool):
            effect = one.classified
            if effect.assumed and effect.reason:
                output.print_note(
                    output.sanitize(f"effect assumed, no annotation says it: {effect.reason}")
                )
            return {
                "tool": one.name,
                "effect": effect.of_arguments(arguments).word,
                "server": one.server,
                "annotations": annotations_of(definition) or {},
            }
    tools = target.selector.format_command("tools")
    raise typer.BadParameter(f"the node has no tool {tool!r}; `{tools}` shows them")


# -- the answer


def _print_results(results: list[Result]) -> None:
    from rich.text import Text

    console = output.create_console()
    for one in results:
        came = one.action + (f" by {one.rule}" if one.rule else "")
        if one.passed:
            console.print(Text.assemble(("ok    ", "green"), output.sanitize(one.case), "  ", came))
            continue
        console.print(Text.assemble(("wrong ", "bold red"), output.sanitize(one.case)))
        console.print(Text.assemble("      - expected ", (one.expected, "green")))
        console.print(Text.assemble("      + came     ", (came, "red")))
    failed = sum(not one.passed for one in results)
    counted = format_count(len(results), "case")
    console.print(f"{counted}, {failed} wrong" if failed else f"{counted}, all as expected")


def _print_explanation(question: Question, found: Explanation) -> None:
    from rich.text import Text

    console = output.create_console()
    what = f"{question.tool}  ({question.effect})" if question.tool else f"{question.kind}"
    who = question.caller
    if question.roles:
        who += f", roles {', '.join(question.roles)}"
    if question.scopes is not None:
        who += f", scopes {', '.join(question.scopes)}"
    console.print(Text(output.sanitize(f"{what}, asked by {who}")))
    console.print(
        Text.assemble((found.action, _STYLES[found.action]), output.sanitize(f"  by {found.rule}"))
    )
    if found.reason:
        console.print(Text(output.sanitize(f"  {found.reason}")))
    fits_too = [one for one in found.fitting if one.rule != found.rule]
    for one in found.fitting:
        if one.rule == found.rule and one.note:
            console.print(Text(output.sanitize(f"  {one.note}"), "dim"))
    _print_opinions("fit, too:", fits_too)
    _print_opinions("would fit but for one thing:", found.nearly)


def _print_opinions(title: str, opinions: list[RuleMatch] | tuple[RuleMatch, ...]) -> None:
    from rich.text import Text

    if not opinions:
        return
    console = output.create_console()
    console.print(title)
    for one in opinions:
        why = one.misses[0] if one.misses else one.note
        console.print(
            Text.assemble(
                (f"  {one.action:<8}", _STYLES[one.action]),
                output.sanitize(one.rule),
                (output.sanitize(f"  {why}" if why else ""), "dim"),
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
    return value if isinstance(value, str) else ", ".join(value)
