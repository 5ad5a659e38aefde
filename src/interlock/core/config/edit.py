"""Adding a server to the text of a config: comments, order and layout of the rest stay.

Text in, text out. The place is found in the tree of the parsed text, and the result is parsed
again: it must say exactly what the old text said, and the new server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from interlock.core.config.automation import LearnedRule
from interlock.core.config.load import DEFAULT_NAME, parse_config
from interlock.core.config.model import Config, ServerConfig
from interlock.core.config.problems import ConfigError, quoted
from interlock.core.config.render import dump, dump_flow, plain_server
from interlock.core.config.yaml_text import compose

# -- Changes a YAML text in one place, so that all else in it stays: comments, order and layout.


def with_flow_entry(text: str, mapping: MappingNode, key: str, plain: object) -> str:
    """Add `key: plain` to a { } mapping, on a line of its own if the others are."""
    entry = f"{dump_flow(key)}: {dump_flow(plain)}"
    if not mapping.value:
        at = mapping.start_mark.index + 1
        return text[:at] + entry + text[at:]
    last_key, last_value = mapping.value[-1]
    at = max(last_key.end_mark.index, last_value.end_mark.index)
    first = mapping.value[0][0]
    own_lines = first.start_mark.line > mapping.start_mark.line
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = f",{newline}{' ' * first.start_mark.column}" if own_lines else ", "
    return text[:at] + gap + entry + text[at:]


def replaced(text: str, node: Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    before = text[:start] if new else text[:start].rstrip(" ")
    return before + new + text[end:]


def end_of(text: str, key: Node, value: Node) -> int:
    """Where the line after an entry begins."""
    if value.start_mark.index < key.end_mark.index:
        # An alias: the node stands where its anchor is, the entry ends on the key's line.
        return line_end(text, key.end_mark.index)
    if isinstance(value, ScalarNode) and value.style in ("|", ">"):
        end = value.end_mark.index
        return end if end and text[end - 1] == "\n" else line_end(text, end)
    if isinstance(value, CollectionNode) and value.value and not value.flow_style:
        last = value.value[-1]
        return end_of(text, *last) if isinstance(last, tuple) else end_of(text, key, last)
    return line_end(text, value.end_mark.index)


def line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def after_comments(text: str, index: int, column: int) -> int:
    """Past the comments that are indented like the entries: they belong to what is above."""
    while index < len(text):
        end = line_end(text, index)
        line = text[index:end]
        stripped = line.lstrip(" ")
        if not stripped.startswith("#") or len(line) - len(stripped) < column:
            break
        index = end
    return index


def with_lines(text: str, index: int, lines: str, newline: str) -> str:
    before, after = text[:index], text[index:]
    if before and not before.endswith("\n"):
        before += newline
    return before + lines.replace("\n", newline) + after


def indented(lines: str, column: int) -> str:
    return "".join(f"{' ' * column}{line}" for line in re.findall(r"[^\n]*\n", lines))


def add_server(text: str, key: str, server: ServerConfig, filename: str = DEFAULT_NAME) -> str:
    """The text with one server more. Raises ConfigError when the text, the key or the result is
    not a good config."""
    before = parse_config(text, filename)
    if key in before.servers:
        raise ConfigError.of(
            f"there is already a server {quoted(key)}", "choose another name", file=filename
        )
    edited = _inserted(text, key, server, filename)
    by_hand = ConfigError.of(
        "the layout of this file is too unusual to be edited safely",
        f"add the server {quoted(key)} below servers: yourself",
        file=filename,
    )
    try:
        compose(edited, filename)
    except ConfigError:
        raise by_hand from None
    after = parse_config(edited, filename)
    expected = Config(servers={**before.servers, key: server}).servers
    if after != replace(before, servers=expected):
        raise by_hand
    return edited


def _inserted(text: str, key: str, server: ServerConfig, filename: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = plain_server(key, server)
    entry = dump({key: plain})
    root = compose(text, filename)
    if not isinstance(root, MappingNode):
        return with_lines(text, len(text), "servers:\n" + indented(entry, 2), newline)
    found = next((pair for pair in root.value if pair[0].value == "servers"), None)
    if root.flow_style:
        if found is None:
            return with_flow_entry(text, root, "servers", {key: plain})
        if isinstance(found[1], MappingNode):
            return with_flow_entry(text, found[1], key, plain)
        return replaced(text, found[1], dump_flow({key: plain}))
    if found is None:
        block = indented("servers:\n" + indented(entry, 2), root.start_mark.column)
        return with_lines(text, len(text), block, newline)
    name, servers = found
    if isinstance(servers, MappingNode) and servers.value:
        if servers.flow_style:
            return with_flow_entry(text, servers, key, plain)
        column = servers.value[0][0].start_mark.column
        at = after_comments(text, end_of(text, *servers.value[-1]), column)
        return with_lines(text, at, indented(entry, column), newline)
    # `servers:`, `servers: {}` or `servers: null`: the value gives way to a block.
    if servers.end_mark.index > servers.start_mark.index:
        text = replaced(text, servers, "")
    at = line_end(text, name.end_mark.index)
    return with_lines(text, at, indented(entry, name.start_mark.column + 2), newline)


# -- Adding a learned rule to the text of a config, and taking one out: the rest of the text
# stays.
#
# Text in, text out. Places are found in the tree of the parsed text, and the result is parsed
# again: it must say exactly what the old text said, but for the one rule.

_POLICY: Final = "policy"
_LEARNED: Final = "learned"
_NOTHING: Final = LearnedRule(name="-", then="allow", tools=[])


def add_learned(text: str, rule: LearnedRule, filename: str = DEFAULT_NAME) -> str:
    """The text with one learned rule more, at the end. Raises ConfigError when the text, the rule
    or the result is not a good config."""
    before = parse_config(text, filename)
    names = {one.name for one in before.policy.learned} | {one.name for one in before.policy.rules}
    if rule.name in names:
        raise ConfigError.of(
            f"there is already a rule {quoted(rule.name)}", "choose another name", file=filename
        )
    edited = _edit_rules_inserted(text, plain_rule(rule), filename)
    advice = f"add the rule {quoted(rule.name)} below policy.learned yourself"
    return _checked(text, edited, [*before.policy.learned, rule], advice, filename)


def remove_learned(text: str, name: str, filename: str = DEFAULT_NAME) -> str:
    """The text without this rule. Raises ConfigError when there is none of that name."""
    before = parse_config(text, filename)
    names = [one.name for one in before.policy.learned]
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none at all"
        raise ConfigError.of(f"there is no learned rule {quoted(name)}", there, file=filename)
    number = names.index(name)
    left = [one for one in before.policy.learned if one.name != name]
    edited = _without(text, number, filename)
    advice = f"take the rule {quoted(name)} below policy.learned out yourself"
    return _checked(text, edited, left, advice, filename)


def plain_rule(rule: LearnedRule) -> dict[str, Any]:
    """A rule as it stands in a config: without what is so anyway."""
    return {
        name: value
        for name in rule.__struct_fields__
        if (value := getattr(rule, name)) != getattr(_NOTHING, name) or name in ("then", "name")
    }


def rule_text(rule: LearnedRule) -> str:
    """A config with this rule alone: what `add_learned` makes of an empty one."""
    return _block(_item(plain_rule(rule)), _LEARNED, _POLICY)


def _checked(text: str, edited: str, learned: list[LearnedRule], advice: str, filename: str) -> str:
    by_hand = ConfigError.of(
        "the layout of this file is too unusual to be edited safely", advice, file=filename
    )
    try:
        compose(edited, filename)
    except ConfigError:
        raise by_hand from None
    before, after = parse_config(text, filename), parse_config(edited, filename)
    if after != replace(before, policy=replace(before.policy, learned=learned)):
        raise by_hand
    return edited


# -- adding


def _edit_rules_inserted(text: str, plain: dict[str, Any], filename: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    root = compose(text, filename)
    if not isinstance(root, MappingNode):
        return with_lines(text, len(text), _block(_item(plain), _LEARNED, _POLICY), newline)
    policy = _entry(root, _POLICY)
    if policy is None:
        if root.flow_style:
            return with_flow_entry(text, root, _POLICY, {_LEARNED: [plain]})
        block = indented(_block(_item(plain), _LEARNED, _POLICY), root.start_mark.column)
        return with_lines(text, len(text), block, newline)
    if not (isinstance(policy[1], MappingNode) and policy[1].value):
        if root.flow_style:
            return replaced(text, policy[1], dump_flow({_LEARNED: [plain]}))
        return _as_block(text, *policy, _block(_item(plain), _LEARNED), newline)
    mapping = policy[1]
    learned = _entry(mapping, _LEARNED)
    if learned is None:
        if mapping.flow_style:
            return with_flow_entry(text, mapping, _LEARNED, [plain])
        column = mapping.value[0][0].start_mark.column
        at = after_comments(text, end_of(text, *mapping.value[-1]), column)
        return with_lines(text, at, indented(_block(_item(plain), _LEARNED), column), newline)
    key, rules = learned
    if not (isinstance(rules, SequenceNode) and rules.value):
        if mapping.flow_style:
            return replaced(text, rules, dump_flow([plain]))
        return _as_block(text, key, rules, _item(plain), newline)
    if rules.flow_style:
        return _with_flow_item(text, rules, plain)
    column = rules.start_mark.column
    at = after_comments(text, end_of(text, key, rules), column)
    return with_lines(text, at, indented(_item(plain), column), newline)


def _entry(mapping: MappingNode, key: str) -> tuple[Node, Node] | None:
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _item(plain: dict[str, Any]) -> str:
    """One entry of a list, as lines."""
    lines = indented(dump(plain), 2)
    return f"- {lines[2:]}"


def _block(lines: str, *keys: str) -> str:
    """Lines below a key, and that below another."""
    for key in keys:
        lines = f"{key}:\n{indented(lines, 2)}"
    return lines


def _as_block(text: str, key: Node, value: Node, lines: str, newline: str) -> str:
    """Nothing, `{}`, `[]` or `null` gives way to a block."""
    if value.end_mark.index > value.start_mark.index:
        text = replaced(text, value, "")
    at = line_end(text, key.end_mark.index)
    return with_lines(text, at, indented(lines, key.start_mark.column + 2), newline)


def _with_flow_item(text: str, rules: SequenceNode, plain: dict[str, Any]) -> str:
    """Add to a [ ] list, on a line of its own if the others are."""
    first, at = rules.value[0], rules.value[-1].end_mark.index
    own_lines = first.start_mark.line > rules.start_mark.line
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = f",{newline}{' ' * first.start_mark.column}" if own_lines else ", "
    return text[:at] + gap + dump_flow(plain) + text[at:]


# -- taking out


def _without(text: str, number: int, filename: str) -> str:
    """What cannot be found in its place is left as it is: then the check says so."""
    root = compose(text, filename)
    policy = _entry(root, _POLICY) if isinstance(root, MappingNode) else None
    if policy is None or not isinstance(policy[1], MappingNode):
        return text
    mapping = policy[1]
    learned = _entry(mapping, _LEARNED)
    if learned is None or not isinstance(learned[1], SequenceNode):
        return text
    rules = learned[1]
    if rules.flow_style:
        return _without_flow_item(text, rules.value, number)
    if len(rules.value) > 1:
        dash = text.rfind("-", 0, rules.value[number].start_mark.index)
        return _without_lines(text, dash, end_of(text, learned[0], rules.value[number]))
    # The last one goes with its key; so does a policy that said nothing else.
    whole = policy if len(mapping.value) == 1 else learned
    return _without_lines(text, whole[0].start_mark.index, end_of(text, *whole))


def _without_lines(text: str, start: int, end: int) -> str:
    """From the line in which `start` is to `end`, which begins a line."""
    return text[: text.rfind("\n", 0, start) + 1] + text[end:]


def _without_flow_item(text: str, items: Sequence[CollectionNode], number: int) -> str:
    one = items[number]
    start, end = one.start_mark.index, one.end_mark.index
    if number + 1 < len(items):
        end = items[number + 1].start_mark.index
    elif number:
        start = items[number - 1].end_mark.index
    return text[:start] + text[end:]
