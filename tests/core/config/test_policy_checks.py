"""Messages for mistakes in policy rules of the config."""

from __future__ import annotations

import subprocess
import sys

import pytest

from interlock.core.config import ConfigError, parse_config
from tests.support.timeouts import HANG_TIMEOUT

WHOLE = """
policy:
  default: deny
  rules:
    - name: readers
      then: allow
      effects: [read_only]
      callers: ["team-*"]
      roles: [dev, ops]
      scopes: ["read:*"]
    - name: big payments
      then: verify
      tools: ["bank.pay", "bank.*transfer*"]
      annotations: {destructiveHint: true, cost_class: expensive, rank: 3}
      when: args.amount > 1000.0 && !("treasurer" in roles)
      reason: More than a thousand.
    - {name: secrets, then: deny, kinds: ["mcp/request:resources/*:file:///secret/*"]}
"""


def rule(text: str) -> str:
    return f"policy:\n  rules:\n    - {{name: a, then: deny, {text}}}\n"


MISTAKES = {
    "policy:\n  rules:\n    - {name: a, then: deny}\n    - {name: a, then: allow}\n": (
        '4:8: policy.rules[1].name: another rule has the name "a"; use unique names'
    ),
    "policy:\n  rules:\n    - {name: 'default:safe', then: deny}\n": (
        "3:8: policy.rules[0].name: names with default: are reserved for the node; "
        "choose another name"
    ),
    rule("when: 'args.x >'"): (
        "3:29: policy.rules[0].when: this condition is incomplete; "
        "add the operand after the last operator"
    ),
    rule("when: 'amount > 3'"): (
        "3:29: policy.rules[0].when: unknown name amount in this condition; "
        "a condition can use args, tool, caller, roles, scopes, effect, server"
    ),
    rule("when: 'size(roles)'"): (
        "3:29: policy.rules[0].when: this condition returns int, not true or false; "
        "compare it with a value"
    ),
    rule("when: '\"yes\"'"): (
        "3:29: policy.rules[0].when: this condition returns string, not true or false; "
        "compare it with a value"
    ),
    rule("kinds: ['resources/read']"): (
        "3:37: policy.rules[0].kinds[0]: this can never match: requests of callers are "
        "mcp/request:METHOD; write mcp/request:resources/read"
    ),
    rule("kinds: ['mcp/response:*']"): (
        "3:37: policy.rules[0].kinds[0]: this can never match: requests of callers are "
        "mcp/request:METHOD; write mcp/request:*"
    ),
    rule("kinds: [chat]"): (
        "3:37: policy.rules[0].kinds[0]: this can never match: requests of callers are "
        "mcp/request:METHOD; write mcp/request:*"
    ),
    rule("kinds: ['mcp/request:ping', 'system/presence']"): (
        "3:57: policy.rules[0].kinds[1]: it is reserved for gateways; "
        "write one such as mcp/request:resources/*"
    ),
    rule("kinds: ['mcp/request:']"): (
        "3:37: policy.rules[0].kinds[0]: it has no method. mcp/request:* matches all methods; "
        "write one such as mcp/request:resources/*"
    ),
    rule("kinds: ['mcp/request:resources/*'], effects: [mutating]"): (
        "3:65: policy.rules[0].effects: effects only applies to tool calls, "
        "and kinds excludes them; "
        "remove one of the two"
    ),
    "policy:\n  rules:\n    - {name: a, then: confirm, kinds: ['mcp/request:*']}\n": (
        "3:40: policy.rules[0].kinds[0]: only tool calls can wait for approval, and this applies "
        "confirm to others; write mcp/request:tools/call, or then: deny"
    ),
    rule("annotations: {readOnlyHint: [true]}"): (
        "3:43: policy.rules[0].annotations.readOnlyHint: expected one value, found a list; "
        "write one value"
    ),
    "tokens: [{name: a, token: '${env:A}', scopes: [all]}]": (
        '1:48: tokens[0].scopes[0]: "all" is not a scope; '
        "write read, write or admin, with :NAMES if it is for some tools"
    ),
    "policy: {rules: [{name: a, then: maybe}]}": (
        '1:28: policy.rules[0].then: "maybe" is not one of the choices; '
        "write allow, confirm, deny or verify"
    ),
}


def test_reads_complete_policy() -> None:
    config = parse_config(WHOLE)
    assert [rule.name for rule in config.policy.rules] == ["readers", "big payments", "secrets"]
    assert config.policy.rules[1].annotations == {
        "destructiveHint": True,
        "cost_class": "expensive",
        "rank": 3,
    }


@pytest.mark.parametrize(
    ("text", "message"), MISTAKES.items(), ids=[repr(text) for text in MISTAKES]
)
def test_reports_exact_message_for_each_mistake(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "interlock.yaml")
    assert str(caught.value) == f"interlock.yaml:{message}"


LEARNED = {
    "policy: {learned: [{name: a, then: allow, tools: []}]}": "the rule has no tool",
    "policy: {learned: [{name: a, then: allow, tools: ['x.*']}]}": "learned rules have no globs",
    "policy: {learned: [{name: a, then: confirm, tools: [x.y]}]}": "policy.learned[0].then",
    "policy: {learned: [{name: a, then: allow, tools: [x.y], when: '1 +'}]}": "when",
    "policy:\n  rules: [{name: a, then: deny}]\n"
    "  learned: [{name: a, then: allow, tools: [x.y]}]": "another rule has the name",
}


@pytest.mark.parametrize(("text", "message"), LEARNED.items(), ids=[repr(text) for text in LEARNED])
def test_names_learned_rule_in_message(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert message in str(caught.value)


def test_imports_cel_library_only_for_conditions() -> None:
    script = (
        "import sys\n"
        "from interlock.core.config import parse_config\n"
        "from interlock.trust.policy import Policy\n"
        "rules = 'policy: {rules: [{name: a, then: deny, tools: [x]%s}]}'\n"
        "Policy(parse_config(rules % '').policy)\n"
        "print('cel_expr_python' in sys.modules)\n"
        "Policy(parse_config(rules % ', when: \"true\"').policy)\n"
        "print('cel_expr_python' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_TIMEOUT,
    )
    assert done.stdout.split() == ["False", "True"]
