"""Edits of a config text at one place: add a server or a learned rule, remove a learned rule.

Text in, text out. All other bytes stay the same: comments, order, layout. The place is found in the
parsed tree. The result is parsed again and must equal the expected config.

For the choice against a round trip with `ruamel.yaml` see docs/decisions/0002-yaml-editing.md.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from interlock.core.config.load import DEFAULT_NAME, parse_config
from interlock.core.config.model import Config, ServerConfig
from interlock.core.config.problems import ConfigError, quote
from interlock.core.config.render import dump, dump_flow, plain_server
from interlock.core.config.trust import LearnedRule
from interlock.core.config.yaml_text import compose

_SERVERS: Final = ("servers",)
_RULES: Final = ("policy", "learned")
_RULE_DEFAULTS: Final = LearnedRule(name="-", then="allow", tools=[])


def add_server(text: str, key: str, server: ServerConfig, filename: str = DEFAULT_NAME) -> str:
    """Return the text with another server. Raises ConfigError if the text, the key or the result is
    invalid."""
    config_before = parse_config(text, filename)
    if key in config_before.servers:
        raise ConfigError.of(
            f"there is already a server {quote(key)}", "choose another name", file=filename
        )
    edited_text = _insert(text, _SERVERS, {key: plain_server(key, server)}, filename)
    # A config completes its servers, so that they can be compared.
    servers = Config(servers={**config_before.servers, key: server}).servers
    advice = f"add the server {quote(key)} below servers: yourself"
    return _check(edited_text, replace(config_before, servers=servers), advice, filename)


def add_learned(text: str, rule: LearnedRule, filename: str = DEFAULT_NAME) -> str:
    """Return the text with another learned rule at the end. Raises ConfigError if the text, the
    rule or the result is invalid."""
    config_before = parse_config(text, filename)
    names = {rule.name for rule in config_before.policy.learned} | {
        rule.name for rule in config_before.policy.rules
    }
    if rule.name in names:
        raise ConfigError.of(
            f"there is already a rule {quote(rule.name)}", "choose another name", file=filename
        )
    edited_text = _insert(text, _RULES, [plain_rule(rule)], filename)
    policy = replace(config_before.policy, learned=[*config_before.policy.learned, rule])
    advice = f"add the rule {quote(rule.name)} below policy.learned yourself"
    return _check(edited_text, replace(config_before, policy=policy), advice, filename)


def remove_learned(text: str, name: str, filename: str = DEFAULT_NAME) -> str:
    """Return the text without a learned rule. Raises ConfigError if there is no such rule."""
    config_before = parse_config(text, filename)
    names = [rule.name for rule in config_before.policy.learned]
    if name not in names:
        alternatives = f"there are {', '.join(names)}" if names else "there is none at all"
        raise ConfigError.of(f"there is no learned rule {quote(name)}", alternatives, file=filename)
    remaining_rules = [rule for rule in config_before.policy.learned if rule.name != name]
    edited_text = _remove_rule(text, names.index(name), filename)
    policy = replace(config_before.policy, learned=remaining_rules)
    advice = f"take the rule {quote(name)} below policy.learned out yourself"
    return _check(edited_text, replace(config_before, policy=policy), advice, filename)


def plain_rule(rule: LearnedRule) -> dict[str, Any]:
    """Return a rule as it is written in a config, without defaults."""
    return {
        name: value
        for name in rule.__struct_fields__
        if (value := getattr(rule, name)) != getattr(_RULE_DEFAULTS, name)
        or name in ("then", "name")
    }


def rule_text(rule: LearnedRule) -> str:
    """Return a config text with this rule alone."""
    return _block_lines(_RULES, [plain_rule(rule)])


def _check(edited_text: str, expected: Config, advice: str, filename: str) -> str:
    error = ConfigError.of(
        "the layout of this file is too unusual to be edited safely", advice, file=filename
    )
    try:
        compose(edited_text, filename)
    except ConfigError:
        raise error from None
    if parse_config(edited_text, filename) != expected:
        raise error
    return edited_text


# -- adding


def _insert(
    text: str, path: tuple[str, ...], entry: dict[str, Any] | list[Any], filename: str
) -> str:
    """Return the text with an entry at the end of the mapping or list at `path`.

    Missing or empty parents are written with it.
    """
    root = compose(text, filename)
    if not isinstance(root, MappingNode):
        return _insert_lines(text, len(text), _block_lines(path, entry), 0)
    parent: CollectionNode = root
    for depth, name in enumerate(path):
        rest = path[depth + 1 :]
        entry_nodes = _find_entry(parent, name)
        if entry_nodes is None:
            return _append(text, parent, path[depth:], entry, at_end=parent is root)
        key, value = entry_nodes
        kind = SequenceNode if isinstance(entry, list) and not rest else MappingNode
        if not (isinstance(value, kind) and value.value):
            # `name:`, `name: {}` or `name: null`: the value is replaced.
            if parent.flow_style:
                return _replace(text, value, dump_flow(_nest(rest, entry)))
            if value.end_mark.index > value.start_mark.index:
                text = _replace(text, value, "")
            at = _line_end(text, key.end_mark.index)
            return _insert_lines(text, at, _block_lines(rest, entry), key.start_mark.column + 2)
        parent = value
    return _append(text, parent, (), entry)


def _append(
    text: str,
    collection: CollectionNode,
    path: tuple[str, ...],
    entry: dict[str, Any] | list[Any],
    *,
    at_end: bool = False,
) -> str:
    """Append an entry below the keys of `path`, in the style of the collection."""
    items = collection.value
    if not collection.flow_style:
        column = collection.start_mark.column
        at = len(text) if at_end else _after_comments(text, _entry_end(text, items[-1]), column)
        return _insert_lines(text, at, _block_lines(path, entry), column)
    flow = dump_flow(_nest(path, entry))[1:-1]
    if not items:
        at = collection.start_mark.index + 1
        return text[:at] + flow + text[at:]
    first = items[0][0] if isinstance(items[0], tuple) else items[0]
    own_lines = first.start_mark.line > collection.start_mark.line
    gap = f",{_newline(text)}{' ' * first.start_mark.column}" if own_lines else ", "
    at = _end(items[-1])
    return text[:at] + gap + flow + text[at:]


def _nest(path: tuple[str, ...], entry: dict[str, Any] | list[Any]) -> Any:
    for name in reversed(path):
        entry = {name: entry}
    return entry


def _block_lines(path: tuple[str, ...], entry: dict[str, Any] | list[Any]) -> str:
    """Format an entry as block YAML below the keys of `path`."""
    if isinstance(entry, list):
        lines = "".join(f"- {_indent(dump(item), 2)[2:]}" for item in entry)
    else:
        lines = dump(entry)
    for name in reversed(path):
        lines = f"{name}:\n{_indent(lines, 2)}"
    return lines


def _insert_lines(text: str, index: int, lines: str, column: int) -> str:
    before, after = text[:index], text[index:]
    if before and not before.endswith("\n"):
        before += _newline(text)
    return before + _indent(lines, column).replace("\n", _newline(text)) + after


def _indent(lines: str, column: int) -> str:
    return "".join(f"{' ' * column}{line}" for line in re.findall(r"[^\n]*\n", lines))


# -- removing


def _remove_rule(text: str, number: int, filename: str) -> str:
    """Remove a rule. If its place is not found, return the text: `_check` then reports it."""
    policy = _find_entry(compose(text, filename), _RULES[0])
    learned = _find_entry(policy[1], _RULES[1]) if policy is not None else None
    if policy is None or learned is None or not isinstance(learned[1], SequenceNode):
        return text
    rules = learned[1]
    if rules.flow_style:
        return _remove_flow_item(text, rules.value, number)
    if len(rules.value) > 1:
        item = rules.value[number]
        start, end = text.rfind("-", 0, item.start_mark.index), _entry_end(text, item)
    else:
        # The last rule is removed with its key, and with a policy that has no other keys.
        removed_entry = policy if len(policy[1].value) == 1 else learned
        start, end = removed_entry[0].start_mark.index, _entry_end(text, removed_entry)
    return text[: text.rfind("\n", 0, start) + 1] + text[end:]


def _remove_flow_item(text: str, items: list[Node], number: int) -> str:
    start, end = items[number].start_mark.index, items[number].end_mark.index
    if number + 1 < len(items):
        end = items[number + 1].start_mark.index
    elif number:
        start = items[number - 1].end_mark.index
    return text[:start] + text[end:]


# -- places in the text


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _find_entry(mapping: Node | None, key: str) -> tuple[Node, Node] | None:
    if not isinstance(mapping, MappingNode):
        return None
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _replace(text: str, node: Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    before = text[:start] if new else text[:start].rstrip(" ")
    return before + new + text[end:]


def _end(entry: Node | tuple[Node, Node]) -> int:
    """Return the position in the text after an entry. The value of an alias has the position of
    its anchor, so the later of key and value counts."""
    if isinstance(entry, tuple):
        return int(max(node.end_mark.index for node in entry))
    return int(entry.end_mark.index)


def _entry_end(text: str, entry: Node | tuple[Node, Node]) -> int:
    """Return the beginning of the line after a block entry."""
    value = entry[1] if isinstance(entry, tuple) else entry
    end = _end(entry)
    is_alias = end > value.end_mark.index
    if isinstance(value, ScalarNode) and value.style in ("|", ">") and not is_alias:
        return end if end and text[end - 1] == "\n" else _line_end(text, end)
    if isinstance(value, CollectionNode) and value.value and not value.flow_style and not is_alias:
        return _entry_end(text, value.value[-1])
    return _line_end(text, end)


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _after_comments(text: str, index: int, column: int) -> int:
    """Skip comments that are indented like the entries: they belong to what is above."""
    while index < len(text):
        end = _line_end(text, index)
        line = text[index:end]
        stripped = line.lstrip(" ")
        if not stripped.startswith("#") or len(line) - len(stripped) < column:
            break
        index = end
    return index
