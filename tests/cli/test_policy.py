"""`interlock policy`: rules shown, explained and tested."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import DEMO, CommandLine

RULES = {
    "default": "safe",
    "rules": [
        {"name": "readers", "then": "allow", "effects": ["read_only"]},
        {"name": "deletes", "then": "confirm", "tools": ["*delete*"], "reason": "It is gone then."},
        {"name": "no bots", "then": "deny", "roles": ["bot"], "tools": ["demo.notes_*"]},
        {"name": "long", "then": "verify", "tools": ["demo.notes_add"], "when": "size(args.x) > 3"},
        {"name": "hinted", "then": "deny", "annotations": {"destructiveHint": True},
         "callers": ["visitor"]},
        {"name": "etc", "then": "deny", "kinds": ["mcp/request:resources/read:file:///etc/*"]},
    ],
}  # fmt: skip


@pytest.fixture
def ruled_world(world: CommandLine) -> CommandLine:
    world.config({"demo": DEMO}, policy=RULES)
    return world


def test_shows_most_restrictive_rules_first(ruled_world: CommandLine) -> None:
    result = ruled_world.run_here("policy", "show")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "deny", "deny", "deny", "verify", "confirm", "allow", "if",
    ]  # fmt: skip
    assert lines[1] == ("deny    hinted   callers: visitor; annotations: destructiveHint = true")
    assert "verify  long     tools: demo.notes_add; when: size(args.x) > 3" in lines
    assert lines[-1].startswith("if no rule matches: irreversible calls need an approval")
    data = json.loads(ruled_world.run_here("policy", "show", "--json").stdout)
    assert [rule["name"] for rule in data["rules"]] == [rule["name"] for rule in RULES["rules"]]  # type: ignore[index]
    assert data["version"] in lines[-1]


def test_explains_call_without_node(ruled_world: CommandLine) -> None:
    result = ruled_world.run_here(
        "policy", "explain", "demo.notes_delete", "--effect", "irreversible", "--caller", "ci",
        "--role", "bot",
    )  # fmt: skip
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        "demo.notes_delete  (irreversible), called by ci, roles bot",
        "deny  by no bots",
        "other matching rules:",
        "  confirm deletes",
        "rules that miss one condition:",
        "  allow   readers  effects: read_only, not irreversible",
    ]


def test_explains_unevaluable_condition(ruled_world: CommandLine) -> None:
    def explain(arguments: str) -> str:
        return ruled_world.run_here(
            "policy", "explain", "demo.notes_add", "--effect", "mutating", "--args", arguments
        ).stdout

    missing = explain("{}")
    assert "verify  by long" in missing
    assert "when: size(args.x) > 3 cannot be evaluated (args has no member x)" in missing
    number = explain('{"x": 5}')
    assert "cannot be evaluated (size(int)" in number
    assert "so it counts as true" in missing
    short = explain('{"x": "abc"}')
    assert "allow  by default:safe" in short
    assert "verify  long  when: size(args.x) > 3 is not true" in short
    assert "verify  by long" in explain('{"x": "abcd"}')


def test_explains_request_of_other_kind(ruled_world: CommandLine) -> None:
    kind = "mcp/request:resources/read:file:///x/../etc/passwd"
    result = ruled_world.run_here("policy", "explain", kind, "--json")
    data = json.loads(result.stdout)
    assert (data["decision"]["action"], data["decision"]["rule"]) == ("deny", "etc")
    outcome = ruled_world.run_here("policy", "explain", "mcp/request:")
    assert outcome.returncode == 2


def test_reads_tool_effect_from_running_node(ruled_world: CommandLine) -> None:
    ruled_world.up().pids()
    result = ruled_world.run_here(
        "policy", "explain", "demo__notes_delete", "--caller", "visitor", "--json"
    )
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["call"]["tool"] == "demo.notes_delete"
    assert (data["call"]["effect"], data["call"]["server"]) == ("irreversible", "demo")
    assert (data["decision"]["action"], data["decision"]["rule"]) == ("deny", "hinted")
    unknown = ruled_world.run_here("policy", "explain", "demo.nothing")
    assert unknown.returncode == 2
    message = " ".join(unknown.stderr.replace("│", " ").split())
    assert "The node has no tool 'demo.nothing'" in message
    assert "use --effect" in message
    similar = ruled_world.run_here("policy", "explain", "files.notes_add")
    assert (similar.returncode, "Did you mean demo.notes_add?" in similar.stderr) == (2, True)


def test_effect_is_required_without_node(ruled_world: CommandLine) -> None:
    result = ruled_world.run_here("policy", "explain", "demo.notes_delete")
    assert result.returncode == 2
    assert "Use --effect" in " ".join(result.stderr.replace("│", " ").split())


def test_denial_of_every_effect_needs_no_node(ruled_world: CommandLine) -> None:
    denied = ("policy", "explain", "demo.notes_delete", "--caller", "ci", "--role", "bot")
    result = ruled_world.run_here(*denied)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == [
        "demo.notes_delete  (any effect), called by ci, roles bot",
        "deny  by no bots",
    ]
    assert ruled_world.run_here(*denied, "--node", "1").returncode != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--effect", "harmless"], "--effect must be one of read_only"),
        (["--effect", "mutating", "--args", "[1]"], "--args must be a JSON object"),
        (["--effect", "mutating", "--args", "{"], "--args must be a JSON object"),
    ],
)
def test_rejects_invalid_explain_options(
    ruled_world: CommandLine, arguments: list[str], message: str
) -> None:
    result = ruled_world.run_here("policy", "explain", "x.y", *arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_config_error_does_not_hide_rules_of_node(ruled_world: CommandLine) -> None:
    node = ruled_world.up()
    node.pids()
    path = ruled_world.cwd / "interlock.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    result = ruled_world.run_here("policy", "explain", "demo.notes_delete")
    assert result.returncode == 0, result.stderr
    assert "confirm  by deletes" in result.stdout
    assert (
        "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
        in result.stderr
    )
    assert (
        ruled_world.run_here(
            "policy", "explain", "demo.notes_delete", "--node", str(ruled_world.port)
        ).returncode
        == 0
    )
    # Rules that cannot be read are not explained.
    path.write_text(text.replace('"then": "confirm"', '"then": "confrim"'), encoding="utf-8")
    assert ruled_world.run_here("policy", "explain", "demo.notes_delete").returncode == 3


def test_named_node_uses_its_own_rules(ruled_world: CommandLine) -> None:
    ruled_world.up().wait_for_line("upstream demo: ready")
    other = ruled_world.cwd / "elsewhere"
    other.mkdir()
    explain = ("policy", "explain", "demo.notes_delete", "--node", str(ruled_world.port))
    in_force = ("--config", str(ruled_world.cwd / "interlock.yaml"))
    (other / "interlock.yaml").write_text("listen: 127.0.0.1:1\n", encoding="utf-8")
    result = ruled_world.run_here(*explain, "--config", str(other / "interlock.yaml"))
    assert result.returncode == 3
    assert result.stdout == ""
    assert (
        f"The rules of the node at 127.0.0.1:{ruled_world.port} are in its config" in result.stderr
    )
    assert "--config FILE" in result.stderr
    assert "confirm  by deletes" in ruled_world.run_here(*explain, *in_force).stdout
    assert "confirm  by deletes" in ruled_world.run_here(*explain[:3], *in_force).stdout


def test_node_without_config_uses_default_rules(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).wait_for_line("upstream demo: ready")
    result = world.run_here("policy", "explain", "demo.notes_delete", "--node", str(world.port))
    assert result.returncode == 0, result.stderr
    assert "confirm  by default:safe" in result.stdout


# --- cases ---

CASES = """
cases:
  - {tool: demo.notes_delete, effect: irreversible, expect: confirm}
  - {tool: demo.notes_delete, effect: irreversible, roles: [bot], expect: deny, rule: no bots}
  - name: long notes need more
    tool: demo.notes_add
    arguments: {x: {a: 1, b: 2, c: 3, d: [4]}}
    expect: verify
  - {tool: demo.x, annotations: {destructiveHint: true}, caller: visitor, expect: deny}
  - tool: demo.x
    scopes: [read]
    above: visitor
    annotations: {destructiveHint: true}
    expect: deny
  - {kind: "mcp/request:resources/read:file:///etc/x", expect: deny}
  - {kind: "mcp/request:tools/list", expect: allow, rule: "default:safe"}
"""


def write_cases(world: CommandLine, text: str) -> Path:
    path = world.cwd / "cases.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_passing_policy_cases_succeed(ruled_world: CommandLine) -> None:
    result = ruled_world.run_here("policy", "test", str(write_cases(ruled_world, CASES)))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "7 cases, all passed"


def test_failing_policy_cases_are_reported(ruled_world: CommandLine) -> None:
    text = CASES.replace("expect: confirm", "expect: allow").replace("rule: no bots", "rule: x")
    result = ruled_world.run_here("policy", "test", str(write_cases(ruled_world, text)))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        "fail  local: demo.notes_delete",
        "      - expected allow",
        "      + actual   confirm by deletes",
        "fail  local: demo.notes_delete",
        "      - expected deny by x",
        "      + actual   deny by no bots",
    ]
    assert lines[-1] == "7 cases, 2 failed"
    data = json.loads(
        ruled_world.run_here("policy", "test", str(write_cases(ruled_world, text)), "--json").stdout
    )
    assert data["failed"] == 2
    assert [case["passed"] for case in data["cases"]].count(False) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: []", "the file has no cases; write `cases:`"),
        ("- tool: x", "the file has no cases; write `cases:`"),
        ("cases: [x]", "cases[0] is not a case"),
        (
            "case: []\ncases: [{tool: x, expect: deny}]",
            "case: unknown key; the only key is `cases`",
        ),
        (
            "cases: [{tool: x, expect: deny}, {tool: y, expect: confrim}]",
            'cases[1] (y): expect: must be one of allow, confirm, verify, deny. Found "confrim"; '
            'did you mean "confirm"?',
        ),
        (
            "cases: [{tool: x, expcet: deny}]",
            'cases[0] (x): expcet: unknown key; did you mean "exp',
        ),
        ("cases: [{tool: x}]", "cases[0] (x): expect is missing; add one of allow,"),
        ("cases: [{tool: x, effect: [], expect: deny}]", "effect: must be one of read_only"),
        (
            "cases: [{tool: x, roles: bot, expect: deny}]",
            "cases[0] (x): roles: expected `array`, got `str`; write a list: [clerk]",
        ),
        ("cases: [{expect: deny}]", "cases[0] must have either tool or kind"),
        ("cases: [{tool: x, kind: chat, expect: deny}]", "must have either tool or kind"),
        ("cases: [{kind: 'mcp/request:', expect: deny}]", "it has no method"),
        ("cases: [", "while parsing"),
        ("cases: [{tool: x, expect: deny}]\n\x00", "special characters"),
    ],
)
def test_rejects_unreadable_policy_cases(ruled_world: CommandLine, text: str, message: str) -> None:
    result = ruled_world.run_here("policy", "test", str(write_cases(ruled_world, text)))
    assert result.returncode == 3
    assert message in result.stderr
    assert "cases.yaml" in result.stderr


def test_docs_examples_are_correct(world: CommandLine) -> None:
    text = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
    rules, examples = (part.partition("```")[0] for part in text.split("```yaml\n")[1:])
    (world.cwd / "interlock.yaml").write_text(rules, encoding="utf-8")
    result = world.run_here("policy", "test", str(write_cases(world, examples)))
    assert result.stdout.splitlines()[-1] == "3 cases, all passed", result.stderr
    command, *printed = (
        line.removeprefix("    ")
        for line in text.split("    $ ")[1].partition("\n\n")[0].split("\n")
    )
    outcome = world.run_here(*shlex.split(command)[1:])
    assert outcome.stdout.splitlines() == printed


def test_reports_missing_cases_file(ruled_world: CommandLine) -> None:
    result = ruled_world.run_here("policy", "test", "nowhere.yaml")
    assert result.returncode == 3
    assert "cannot read nowhere.yaml: No such file or directory" in result.stderr
