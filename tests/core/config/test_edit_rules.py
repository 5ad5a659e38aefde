"""Adding and removing learned rules in a config file: the rest of the text does not change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config import ConfigError, LearnedRule, parse_config
from interlock.core.config.edit import add_learned, remove_learned, rule_text

SHORT = LearnedRule(name="new", then="allow", tools=["a.b"])
LONG = LearnedRule(
    name="notes",
    then="allow",
    tools=["files.write"],
    callers=["agent"],
    when='args["path"].startsWith("/srv/#notes/") && args["x"] == "\\u202e: - {"',
    reason='Let "agent" write: notes.',
    evidence="decided alike 214 of 216 times",
    accepted="2026-11-16T14:00:00Z by owner",
)
OLD = LearnedRule(name="old", then="deny", tools=["c.d"])


def test_adds_rule_below_last_and_keeps_comments() -> None:
    text = """\
# my node
policy:
  default: safe   # careful
  rules:
    - {name: writes, then: confirm, tools: [files.*]}
  learned:
    # the first
    - name: old
      then: deny
      tools: [c.d]   # one
    # - name: dropped

# the end
names: safe
"""
    edited = add_learned(text, LONG)
    assert (
        edited
        == """\
# my node
policy:
  default: safe   # careful
  rules:
    - {name: writes, then: confirm, tools: [files.*]}
  learned:
    # the first
    - name: old
      then: deny
      tools: [c.d]   # one
    # - name: dropped
    - name: notes
      then: allow
      tools: [files.write]
      callers: [agent]
      when: 'args["path"].startsWith("/srv/#notes/") && args["x"] == "\\u202e: - {"'
      reason: 'Let "agent" write: notes.'
      evidence: decided alike 214 of 216 times
      accepted: 2026-11-16T14:00:00Z by owner

# the end
names: safe
"""
    )
    assert remove_learned(edited, "notes") == text
    assert parse_config(edited).policy.learned == [OLD, LONG]


ITEM = "- name: new\n{0}  then: allow\n{0}  tools: [a.b]\n"
BLOCK = "policy:\n  learned:\n    " + ITEM.format("    ")
FLOW = '{"name": "new", "then": "allow", "tools": ["a.b"]}'


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", BLOCK),
        ("# only a comment", f"# only a comment\n{BLOCK}"),
        ("---\n", f"---\n{BLOCK}"),
        ("names: safe", f"names: safe\n{BLOCK}"),
        ("policy:\n", BLOCK),
        ("policy: {}  # none\nnames: safe\n", BLOCK.replace("policy:", "policy:  # none", 1)
         + "names: safe\n"),
        ("policy: null\n", BLOCK),
        ("policy:\n  default: safe\n", BLOCK.replace(":\n", ":\n  default: safe\n", 1)),
        ("policy:\n  default: safe\nnames: safe\n",
         BLOCK.replace(":\n", ":\n  default: safe\n", 1) + "names: safe\n"),
        ("policy:\n  learned:\n  default: safe\n", BLOCK + "  default: safe\n"),
        ("policy:\n  learned: []\n", BLOCK),
        ("policy:\n  learned: []  # none yet\n", BLOCK.replace("learned:", "learned:  # none yet")),
        ("policy:\n  learned:\n  - {name: old, then: deny, tools: [c.d]}\n",
         "policy:\n  learned:\n  - {name: old, then: deny, tools: [c.d]}\n  "
         + ITEM.format("  ")),
        ("policy:\n  learned: [{name: old, then: deny, tools: [c.d]}]\n",
         "policy:\n  learned: [{name: old, then: deny, tools: [c.d]}, " + FLOW + "]\n"),
        ("policy: {default: safe}\n",
         'policy: {default: safe, "learned": [' + FLOW + "]}\n"),
        ("{}", '{"policy": {"learned": [' + FLOW + "]}}"),
        ('{"policy": null}', '{"policy": {"learned": [' + FLOW + "]}}"),
        ('{"policy": {"learned": null}}', '{"policy": {"learned": [' + FLOW + "]}}"),
        ('{\n  "policy": {\n    "learned": [\n      {"name": "old", "then": "deny",'
         ' "tools": ["c.d"]}\n    ]\n  }\n}\n',
         '{\n  "policy": {\n    "learned": [\n      {"name": "old", "then": "deny",'
         ' "tools": ["c.d"]},\n      ' + FLOW + "\n    ]\n  }\n}\n"),
        ("policy:\r\n  learned:\r\n    - name: old\r\n      then: deny\r\n      tools: [c.d]\r\n",
         "policy:\r\n  learned:\r\n    - name: old\r\n      then: deny\r\n      tools: [c.d]\r\n"
         + "    " + ITEM.format("    ").replace("\n", "\r\n")),
    ],
)  # fmt: skip
def test_adds_and_removes_rule_in_every_layout(text: str, edited: str) -> None:
    assert add_learned(text, SHORT) == edited
    before = parse_config(text)
    assert parse_config(edited).policy.learned == [*before.policy.learned, SHORT]
    # And out again: whatever is left means what it meant.
    assert parse_config(remove_learned(edited, "new")) == before


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "layout",
    [
        "policy:\n  learned:\n{block}names: safe\n",
        "policy:\n  default: safe\n  learned:\n{block}",
        "policy:\n  learned: [{flow}]\nnames: safe\n",
        '{{"policy": {{"learned": [{flow}]}}}}',
        '{{\n"policy": {{\n"learned": [\n{lines}\n]\n}}\n}}\n',
    ],
)
def test_removes_rule_and_keeps_others(layout: str, number: int) -> None:
    names = ["first", "second", "third"]
    flow = [f'{{"name": "{name}", "then": "allow", "tools": ["a.b"]}}' for name in names]
    block = "".join(
        f"    # about {name}\n    - name: {name}\n      then: allow\n      tools: [a.b]  # x\n"
        for name in names
    )
    text = layout.format(block=block, flow=", ".join(flow), lines=",\n".join(flow))
    edited = remove_learned(text, names[number])
    remaining = [item.name for item in parse_config(edited).policy.learned]
    assert remaining == [name for name in names if name != names[number]]
    for one in remaining:
        edited = remove_learned(edited, one)
    assert parse_config(edited).policy.learned == []


def test_edits_rules_with_dash_on_separate_line() -> None:
    text = "policy:\n  learned:\n    -\n      name: a\n      then: deny\n      tools: [x.y]\n"
    both = add_learned(text, SHORT)
    assert parse_config(remove_learned(both, "a")).policy.learned == [SHORT]


def test_rejects_duplicate_or_unknown_rule() -> None:
    text = rule_text(SHORT)
    with pytest.raises(ConfigError, match='already a rule "new"'):
        add_learned(text, SHORT)
    rules = "policy: {rules: [{name: new, then: deny}]}"
    with pytest.raises(ConfigError, match='already a rule "new"'):
        add_learned(rules, SHORT)
    with pytest.raises(ConfigError, match='no learned rule "other"; there are new'):
        remove_learned(text, "other")
    with pytest.raises(ConfigError, match="there is none at all"):
        remove_learned("", "other")


def test_rejects_layout_with_anchors() -> None:
    shared = "policy:\n  rules: &r []\n  learned: *r\n"
    with pytest.raises(ConfigError, match=r'add the rule "new" below policy\.learned yourself'):
        add_learned(shared, SHORT)


def test_rejects_invalid_rule() -> None:
    with pytest.raises(ConfigError, match="CEL"):
        add_learned("", LearnedRule(name="x", then="allow", tools=["a.b"], when="args.("))
    with pytest.raises(ConfigError, match="learned rules have no globs"):
        add_learned("", LearnedRule(name="x", then="allow", tools=["a.*"]))


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
RULES = st.builds(
    LearnedRule,
    name=WORDS.filter(lambda item: item != "old"),
    then=st.sampled_from(["allow", "deny"]),
    tools=st.lists(
        st.from_regex(r"[a-z]{1,4}\.[a-z:# '\"-]{1,5}", fullmatch=True), min_size=1, max_size=2
    ),
    callers=st.lists(WORDS, max_size=2),
    irreversible=st.booleans(),
    reason=WORDS | st.just(""),
    evidence=WORDS | st.just(""),
)
TEXTS = st.sampled_from(
    [
        "",
        "names: safe\n",
        "policy:\n  default: deny\n# end",
        "policy: {default: deny}",
        '{"policy": {"learned": []}}',
        "policy:\n  learned:\n  - {name: old, then: deny, tools: [c.d]}\n\n# end\n",
        "policy:\n  learned: [\n    {name: old, then: deny, tools: [c.d]},\n  ]\n",
    ]
)


@given(TEXTS, RULES)
def test_adding_and_removing_rule_restores_config(text: str, rule: LearnedRule) -> None:
    before = parse_config(text)
    edited = add_learned(text, rule)
    assert parse_config(edited).policy.learned == [*before.policy.learned, rule]
    assert parse_config(remove_learned(edited, rule.name)) == before
