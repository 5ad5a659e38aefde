"""`interlock policy`: show the rules, explain a decision, and test the rules with cases."""

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
from interlock.core.config.problems import quote
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


# -- Cases for `interlock policy test`: a call, its caller, and the expected decision.

_FORMAT_HINT = "write `cases:` with a list, such as - {tool: github.delete_repo, expect: deny}"
_KEY_HINTS = {
    "roles": "write a list: [clerk]",
    "scopes": "write a list: [read]",
    "arguments": "write keys and values: {amount: 5000}",
    "annotations": "write keys and values: {destructiveHint: true}",
}
_CLIENT = Client(Era.STATELESS, LATEST_STATELESS, "interlock-cli")


class PolicyQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a caller, for a decision of the policy."""

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

    def build_request(self) -> tuple[Call, PolicyRequest]:
        """Build the call and the request for the policy. Raises ProtocolError for a wrong kind."""
        kind = MessageKind("", TOOLS_CALL, self.tool) if self.tool else read_kind(self.kind or "")
        call = Call(
            kind.method, "cli", Credentials("local"), _CLIENT,
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
        policy_request = PolicyRequest(
            (tuple(request_kind(kind.method, context) for context in contexts),),
            (kind.context or "?") if is_tool else "",
            call.effect,
            call.upstream,
            self.annotations,
        )
        return call, policy_request


class PolicyCase(PolicyQuery, frozen=True, kw_only=True):
    """A request with the expected decision."""

    expect: Action
    rule: str | None = None
    """The rule that must decide. None: any rule."""
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or f"{self.caller}: {self.tool or self.kind}"


class CaseResult(Struct, frozen=True):
    """The result of a case."""

    case: str
    expected: str
    action: str
    rule: str
    passed: bool


def read_cases(path: Path) -> list[PolicyCase]:
    """Read the cases of a file. Raises ConfigError with the position of the error."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError.of(f"cannot read {path}: {exc.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise ConfigError.of(f"{path}: {' '.join(str(exc).split())}", _FORMAT_HINT) from None
    entries = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError.of(f"{path}: the file has no cases", _FORMAT_HINT)
    unknown_keys = [str(key) for key in document if key != "cases"]
    if unknown_keys:
        raise ConfigError.of(f"{path}: {unknown_keys[0]}: unknown key", "the only key is `cases`")
    return [_read_case(path, number, entry) for number, entry in enumerate(entries)]


def _read_case(path: Path, number: int, entry: Any) -> PolicyCase:
    place = f"{path}: cases[{number}]"
    if not isinstance(entry, dict):
        raise ConfigError.of(f"{place} is not a case", _FORMAT_HINT)
    label = entry.get("name") or entry.get("tool") or entry.get("kind")
    place += f" ({label})" if isinstance(label, str) else ""
    keys = [field_info.name for field_info in msgspec.structs.fields(PolicyCase)]
    for key in map(str, entry):
        if key not in keys:
            similar = difflib.get_close_matches(key, keys, n=1)
            hint = f'did you mean "{similar[0]}"?' if similar else f"the keys are {', '.join(keys)}"
            raise ConfigError.of(f"{place}: {key}: unknown key", hint)
    if "expect" not in entry:
        raise ConfigError.of(f"{place}: expect is missing", f"add one of {_format_choices(Action)}")
    try:
        case = msgspec.convert(entry, PolicyCase)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise ConfigError.of(*_describe_invalid_value(place, entry, str(exc))) from None
    if (case.tool is None) is (case.kind is None):
        raise ConfigError.of(f"{place} must have either tool or kind", "add or remove one")
    try:
        case.build_request()
    except ProtocolError as exc:
        raise ConfigError.of(f"{place}: kind: {exc.message}") from None
    return case


def _describe_invalid_value(place: str, entry: dict[str, Any], text: str) -> tuple[str, str]:
    """Return what is wrong with a value, and what to write instead."""
    message, _, key_path = text.partition(" - at `$.")
    key = re.split(r"[.\[`]", key_path)[0] or "?"
    choices = {"expect": _format_choices(Action), "effect": _format_choices(EffectName)}.get(key)
    value = entry.get(key)
    if choices is None:
        return f"{place}: {key}: {message[:1].lower()}{message[1:]}", _KEY_HINTS.get(key, "")
    similar = difflib.get_close_matches(str(value), choices.split(", "), n=1)
    hint = f'did you mean "{similar[0]}"?' if similar else f"write one of {choices}"
    return f"{place}: {key}: must be one of {choices}. Found {quote(str(value))}", hint


def _format_choices(literal: Any) -> str:
    return ", ".join(get_args(literal))


def run_case(policy: Policy, case: PolicyCase) -> CaseResult:
    call, policy_request = case.build_request()
    try:
        explanation = policy.judge_as(call, policy_request)
        action, rule = explanation.action.label, explanation.rule
    except InterlockError as error:
        action, rule = error.failure.name, ""
    passed = action == case.expect and case.rule in (None, rule)
    expected = case.expect if case.rule is None else f"{case.expect} by {case.rule}"
    return CaseResult(case.title, expected, action, rule, passed)


policy = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_STYLES: Final = {"allow": "green", "confirm": "yellow", "verify": "magenta", "deny": "bold red"}
_EFFECTS: Final = ("read_only", "additive", "mutating", "irreversible")
_DEFAULTS: Final = {
    "safe": "irreversible calls need an approval, other calls are allowed",
    "allow": "all calls are allowed",
    "deny": "only lists are allowed",
}


@policy.callback()
def _policy() -> None:
    """Show the policy rules, explain a decision, or test the rules.

    The most restrictive matching rule decides. From the least to the most restrictive: allow,
    confirm, verify, deny.
    """


@policy.command()
def show(config: config_source.ConfigOption = None, json: Json = False) -> None:
    """Show the rules of the config, the most restrictive first.

    \b
    Example:
      interlock policy show
    """
    loaded, compiled = _load_policy(config)
    if json:
        rules = loaded.policy.rules
        output.print_json(
            {"version": compiled.version, "default": compiled.default, "rules": rules}
        )
        return
    from rich.text import Text

    console = output.create_console()
    ranked = sorted(zip(compiled.rules, loaded.policy.rules, strict=True), key=_sort_key)
    name_width = max((len(rule.name) for rule, _ in ranked), default=0)
    for rule, config_rule in ranked:
        action = rule.action.label
        conditions = [
            f"{name}: {_format_value(value)}" for name, value in config_rule.selectors().items()
        ]
        line = Text.assemble(
            (f"{action:<8}", _STYLES[action]),
            output.sanitize(f"{rule.name:<{name_width}}  "),
            output.sanitize("; ".join(conditions) or "every tool call"),
        )
        console.print(line, soft_wrap=True)
        if config_rule.reason:
            console.print(
                Text(f"{'':<8}{'':<{name_width}}  {output.sanitize(config_rule.reason)}", "dim")
            )
    console.print(
        f"if no rule matches: {_DEFAULTS[compiled.default]}  (version {compiled.version})"
    )


@policy.command("test")
def run_cases(
    file: Annotated[Path, typer.Argument(help="YAML file with the cases.", show_default=False)],
    config: config_source.ConfigOption = None,
    json: Json = False,
) -> None:
    """Test the rules with cases. The exit code is 1 if a decision differs from the expected one.

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

    _, compiled = _load_policy(config)
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
            metavar="CALL",
            help="Name of a tool, or a kind such as mcp/request:resources/read:URI.",
        ),
    ],
    caller: Annotated[str, typer.Option("--caller", help="Name of the caller.")] = "local",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Role of the caller. Can be repeated.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="Scope of the caller. Can be repeated.")
    ] = None,
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="Arguments, as a JSON object.")
    ] = "{}",
    effect: Annotated[
        str | None,
        typer.Option(
            "--effect",
            help=f"Effect of the tool ({_EFFECTS[0]}, …). Default: its effect at the running node.",
        ),
    ] = None,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Explain the decision on a call: the deciding rule, other matching rules, and near misses.

    The running node supplies the effect of the tool. If no node is running, or the node does not
    have the tool, use --effect.

    \b
    Examples:
      interlock policy explain github.delete_repo --caller ci --role bot
      interlock policy explain bank.pay --args '{"amount": 5000}' --effect mutating
    """
    from interlock.trust.policy.explanation import explain as explain_call

    compiled = _find_policy(config, node)
    query, has_effect = _build_query(
        compiled, tool, caller, role, scope, args, effect, config, node
    )
    call, policy_request = query.build_request()
    explanation = _drop_other_matches(
        explain_call(compiled, call, policy_request), has_effect=has_effect
    )
    if json:
        output.print_json({"call": query, "decision": explanation})
    else:
        _print_explanation(query, explanation, has_effect=has_effect)


def _load_policy(config: Path | None) -> tuple[Config, Policy]:
    from interlock.trust.policy import Policy

    loaded, _ = config_source.load_or_default(config_source.find_source_or_none(config))
    return loaded, Policy(loaded.policy)


def _find_policy(config: Path | None, node: str | None) -> Policy:
    """Return the policy of the config, or of the node at the address.

    While the node runs, an error in another part of the config is accepted. Raises ConfigError,
    InterlockError.
    """
    from interlock.terminal import node_discovery
    from interlock.trust.policy import Policy

    target = node_discovery.find_node(config, node)
    problem = target.config_error
    if node is not None and target.source is None:
        return _find_policy_by_version(target, config_source.find_source_or_none(config))
    if problem is None:
        return Policy(target.config.policy)
    policy_unreadable = any(
        not item.path or item.path.startswith("policy") for item in problem.problems
    )
    if policy_unreadable or target.fetch_summary() is None:
        raise problem
    node_discovery.print_earlier_config_note(problem)
    return Policy(target.config.policy)


def _find_policy_by_version(
    target: node_discovery.TargetNode, source: config_source.ConfigSource | None
) -> Policy:
    """Find the policy of a node whose config is unknown, by the version that the node reports.

    Raises ConfigError, InterlockError.
    """
    from interlock.core.config import Config
    from interlock.errors import CONFIG, InterlockError
    from interlock.terminal import node_discovery
    from interlock.trust.policy import Policy

    summary = target.fetch_summary()
    if summary is None:
        raise node_discovery.not_running_error(target, selected_by_address=True)
    # A node without a config file, such as `up --demo`, has the default rules.
    configs = [Config()] if source is None else [source.load(), Config()]
    for rules in (Policy(config_entry.policy) for config_entry in configs):
        if rules.version == summary.policy:
            return rules
    other_text = "" if source is None else f", and {source.path} has other rules"
    raise InterlockError(
        CONFIG,
        f"The rules of the node at {target.config.listen} are in its config file{other_text}. "
        "Name that file: --config FILE",
    )


def _drop_other_matches(explanation: Explanation, *, has_effect: bool) -> Explanation:
    """Remove near misses that are about other tools, and about an unknown effect."""
    from msgspec.structs import replace

    prefixes = ("tools: ",) if has_effect else ("tools: ", "effects: ")
    near_misses = tuple(
        match for match in explanation.nearly if not match.misses[0].startswith(prefixes)
    )
    return replace(explanation, nearly=near_misses)


# -- the query


def _build_query(
    compiled: Policy,
    tool: str,
    caller: str,
    roles: list[str] | None,
    scopes: list[str] | None,
    args: str,
    effect: str | None,
    config: Path | None,
    node: str | None,
) -> tuple[PolicyQuery, bool]:
    """Return the query, and whether its effect is the effect of the tool."""
    import msgspec

    from interlock.errors import ProtocolError

    try:
        arguments = msgspec.json.decode(args, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise typer.BadParameter(f"--args must be a JSON object: {exc}") from None
    if effect is not None and effect not in _EFFECTS:
        raise typer.BadParameter(f"--effect must be one of {', '.join(_EFFECTS)}")
    query = PolicyQuery(
        caller=caller, roles=roles or [], scopes=scopes or None, arguments=arguments
    )
    if ":" in tool:
        query = msgspec.structs.replace(query, kind=tool, **({"effect": effect} if effect else {}))
        try:
            query.build_request()
        except ProtocolError as exc:
            raise typer.BadParameter(exc.message) from None
        return query, True
    if effect is not None:
        return msgspec.structs.replace(query, tool=tool, effect=effect), True
    from interlock.terminal import node_discovery
    from interlock.terminal.event_loop import run

    if node_discovery.find_node(config, node).fetch_summary() is None:
        query = msgspec.structs.replace(query, tool=tool)
        denied = _find_denied(compiled, query)
        if denied is None:
            raise typer.BadParameter(
                f"No node is running, so the effect of {tool} is unknown. Use --effect, or start "
                "the node."
            )
        return denied, False
    tool_fields = run(_fetch_tool(tool, arguments, config, node))
    return msgspec.structs.replace(query, **tool_fields), True


def _find_denied(compiled: Policy, query: PolicyQuery) -> PolicyQuery | None:
    """Return the query with an effect, if one rule denies the call with every effect.

    Annotations, which are unknown as well, can only add rules, and no rule is more restrictive.
    """
    from msgspec.structs import replace

    queries = [replace(query, effect=effect) for effect in _EFFECTS]
    decisions = [compiled.judge_as(*item.build_request()) for item in queries]
    denies = all(decision.action.label == "deny" for decision in decisions)
    return queries[-1] if denies and len({decision.rule for decision in decisions}) == 1 else None


async def _fetch_tool(
    tool: str, arguments: dict[str, Any], config: Path | None, node: str | None
) -> dict[str, Any]:
    """Fetch the effect, server and annotations of a tool from the running node."""
    from interlock.terminal import node_discovery
    from interlock.terminal.node_client import connect_to_node
    from interlock.terminal.tool_table import is_same_name, read_listing
    from interlock.trust.policy.attributes import read_annotations

    target = node_discovery.find_node(config, node)
    async with connect_to_node(config, node=node) as node_client:
        definitions = await node_client.list_tools()
        listed_tools = read_listing(definitions, node_client.config)
    for definition, tool_entry in zip(definitions, listed_tools, strict=True):
        if is_same_name(tool_entry.name, tool):
            effect = tool_entry.effect_details
            if effect.is_assumed and effect.reason:
                output.print_note(
                    output.sanitize(
                        f"The effect is assumed, without an annotation: {effect.reason}"
                    )
                )
            return {
                "tool": tool_entry.name,
                "effect": effect.level_for(arguments).label,
                "server": tool_entry.server,
                "annotations": read_annotations(definition) or {},
            }
    tools = target.selector.format_command("tools")
    similar = _find_similar(tool, [tool_entry.name for tool_entry in listed_tools])
    raise typer.BadParameter(
        f"The node has no tool {tool!r}. {f'Did you mean {similar}? ' if similar else ''}List the "
        f"tools: `{tools}`. For a tool of another node, use --effect."
    )


def _find_similar(tool: str, names: list[str]) -> str:
    """Return the name with the same last part, else the most similar one. Empty: none."""
    leaf = tool.replace("__", ".").rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    return next(iter(same_leaf or difflib.get_close_matches(tool, names, n=1)), "")


# -- output


def _print_results(results: list[CaseResult]) -> None:
    from rich.text import Text

    console = output.create_console()
    for result in results:
        actual = result.action + (f" by {result.rule}" if result.rule else "")
        if result.passed:
            console.print(
                Text.assemble(("ok    ", "green"), output.sanitize(result.case), "  ", actual)
            )
            continue
        console.print(Text.assemble(("fail  ", "bold red"), output.sanitize(result.case)))
        console.print(Text.assemble("      - expected ", (result.expected, "green")))
        console.print(Text.assemble("      + actual   ", (actual, "red")))
    failed = sum(not result.passed for result in results)
    count_text = format_count(len(results), "case")
    console.print(f"{count_text}, {failed} failed" if failed else f"{count_text}, all passed")


def _print_explanation(
    query: PolicyQuery, explanation: Explanation, *, has_effect: bool = True
) -> None:
    """Print an explanation.

    Args:
        has_effect: False if the effect of the tool is unknown, and the decision the same for all.
    """
    from rich.text import Text

    console = output.create_console()
    effect = query.effect if has_effect else "any effect"
    subject = f"{query.tool}  ({effect})" if query.tool else f"{query.kind}"
    caller_text = query.caller
    if query.roles:
        caller_text += f", roles {', '.join(query.roles)}"
    if query.scopes is not None:
        caller_text += f", scopes {', '.join(query.scopes)}"
    console.print(Text(output.sanitize(f"{subject}, called by {caller_text}")))
    console.print(
        Text.assemble(
            (explanation.action, _STYLES[explanation.action]),
            output.sanitize(f"  by {explanation.rule}"),
        )
    )
    if explanation.reason:
        console.print(Text(output.sanitize(f"  {explanation.reason}")))
    other_matches = [match for match in explanation.fitting if match.rule != explanation.rule]
    for match in explanation.fitting:
        if match.rule == explanation.rule and match.note:
            console.print(Text(output.sanitize(f"  {match.note}"), "dim"))
    _print_matches("other matching rules:", other_matches)
    _print_matches("rules that miss one condition:", explanation.nearly)


def _print_matches(title: str, matches: list[RuleMatch] | tuple[RuleMatch, ...]) -> None:
    from rich.text import Text

    if not matches:
        return
    console = output.create_console()
    console.print(title)
    for match in matches:
        reason = match.misses[0] if match.misses else match.note
        console.print(
            Text.assemble(
                (f"  {match.action:<8}", _STYLES[match.action]),
                output.sanitize(match.rule),
                (output.sanitize(f"  {reason}" if reason else ""), "dim"),
            ),
            soft_wrap=True,
        )


def _sort_key(pair: Any) -> tuple[int, int]:
    rule = pair[0]
    return (-rule.action, rule.number)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        import msgspec

        return ", ".join(
            f"{key} = {msgspec.json.encode(each).decode()}" for key, each in value.items()
        )
    return value if isinstance(value, str) else ", ".join(value)
