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
def ruled(world: CommandLine) -> CommandLine:
    world.config({"demo": DEMO}, policy=RULES)
    return world


def test_rules_are_shown_the_most_restrictive_first(ruled: CommandLine) -> None:
    done = ruled.run_here("policy", "show")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "deny", "deny", "deny", "verify", "confirm", "allow", "if",
    ]  # fmt: skip
    assert lines[1] == ("deny    hinted   callers: visitor; annotations: destructiveHint = true")
    assert "verify  long     tools: demo.notes_add; when: size(args.x) > 3" in lines
    assert lines[-1].startswith("if no rule matches: irreversible calls need an approval")
    told = json.loads(ruled.run_here("policy", "show", "--json").stdout)
    assert [rule["name"] for rule in told["rules"]] == [rule["name"] for rule in RULES["rules"]]  # type: ignore[index]
    assert told["version"] in lines[-1]


def test_a_call_is_explained_without_a_node(ruled: CommandLine) -> None:
    done = ruled.run_here(
        "policy", "explain", "demo.notes_delete", "--effect", "irreversible", "--caller", "ci",
        "--role", "bot",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "demo.notes_delete  (irreversible), called by ci, roles bot",
        "deny  by no bots",
        "other matching rules:",
        "  confirm deletes",
        "rules that miss one condition:",
        "  allow   readers  effects: read_only, not irreversible",
    ]


def test_a_condition_that_cannot_be_judged_says_so(ruled: CommandLine) -> None:
    def explain(arguments: str) -> str:
        return ruled.run_here(
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


def test_a_request_of_another_kind_is_explained(ruled: CommandLine) -> None:
    kind = "mcp/request:resources/read:file:///x/../etc/passwd"
    done = ruled.run_here("policy", "explain", kind, "--json")
    told = json.loads(done.stdout)
    assert (told["decision"]["action"], told["decision"]["rule"]) == ("deny", "etc")
    wrong = ruled.run_here("policy", "explain", "mcp/request:")
    assert wrong.returncode == 2


def test_the_running_node_is_asked_what_a_tool_does(ruled: CommandLine) -> None:
    ruled.up().pids()
    done = ruled.run_here(
        "policy", "explain", "demo__notes_delete", "--caller", "visitor", "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["call"]["tool"] == "demo.notes_delete"
    assert (told["call"]["effect"], told["call"]["server"]) == ("irreversible", "demo")
    assert (told["decision"]["action"], told["decision"]["rule"]) == ("deny", "hinted")
    unknown = ruled.run_here("policy", "explain", "demo.nothing")
    assert unknown.returncode == 2
    assert "The node has no tool 'demo.nothing'" in unknown.stderr


def test_without_a_node_the_effect_must_be_said(ruled: CommandLine) -> None:
    done = ruled.run_here("policy", "explain", "demo.notes_delete")
    assert done.returncode == 2
    assert "Use --effect" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--effect", "harmless"], "--effect must be one of read_only"),
        (["--effect", "mutating", "--args", "[1]"], "--args must be a JSON object"),
        (["--effect", "mutating", "--args", "{"], "--args must be a JSON object"),
    ],
)
def test_wrong_usage(ruled: CommandLine, arguments: list[str], said: str) -> None:
    done = ruled.run_here("policy", "explain", "x.y", *arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_mistake_elsewhere_does_not_hide_the_rules(ruled: CommandLine) -> None:
    node = ruled.up()
    node.pids()
    path = ruled.cwd / "interlock.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    done = ruled.run_here("policy", "explain", "demo.notes_delete")
    assert done.returncode == 0, done.stderr
    assert "confirm  by deletes" in done.stdout
    assert (
        "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
        in done.stderr
    )
    assert (
        ruled.run_here(
            "policy", "explain", "demo.notes_delete", "--node", str(ruled.port)
        ).returncode
        == 0
    )
    # Rules that cannot be read are not explained.
    path.write_text(text.replace('"then": "confirm"', '"then": "confrim"'), encoding="utf-8")
    assert ruled.run_here("policy", "explain", "demo.notes_delete").returncode == 3


def test_the_rules_of_a_node_that_is_named_are_its_own(ruled: CommandLine) -> None:
    ruled.up().wait_for_line("demo is ready")
    other = ruled.cwd / "elsewhere"
    other.mkdir()
    explain = ("policy", "explain", "demo.notes_delete", "--node", str(ruled.port))
    in_force = ("--config", str(ruled.cwd / "interlock.yaml"))
    (other / "interlock.yaml").write_text("listen: 127.0.0.1:1\n", encoding="utf-8")
    done = ruled.run_here(*explain, "--config", str(other / "interlock.yaml"))
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"The rules of the node at 127.0.0.1:{ruled.port} are in its config" in done.stderr
    assert "--config FILE" in done.stderr
    assert "confirm  by deletes" in ruled.run_here(*explain, *in_force).stdout
    assert "confirm  by deletes" in ruled.run_here(*explain[:3], *in_force).stdout


def test_the_rules_of_a_node_without_a_config_are_the_default_ones(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).wait_for_line("demo is ready")
    done = world.run_here("policy", "explain", "demo.notes_delete", "--node", str(world.port))
    assert done.returncode == 0, done.stderr
    assert "confirm  by default:safe" in done.stdout


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


def cases(world: CommandLine, text: str) -> Path:
    path = world.cwd / "cases.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_cases_that_come_out_as_expected(ruled: CommandLine) -> None:
    done = ruled.run_here("policy", "test", str(cases(ruled, CASES)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "7 cases, all passed"


def test_cases_that_do_not(ruled: CommandLine) -> None:
    text = CASES.replace("expect: confirm", "expect: allow").replace("rule: no bots", "rule: x")
    done = ruled.run_here("policy", "test", str(cases(ruled, text)))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:6] == [
        "fail  local: demo.notes_delete",
        "      - expected allow",
        "      + actual   confirm by deletes",
        "fail  local: demo.notes_delete",
        "      - expected deny by x",
        "      + actual   deny by no bots",
    ]
    assert lines[-1] == "7 cases, 2 failed"
    told = json.loads(ruled.run_here("policy", "test", str(cases(ruled, text)), "--json").stdout)
    assert told["failed"] == 2
    assert [one["passed"] for one in told["cases"]].count(False) == 2


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_cases_that_cannot_be_read(ruled: CommandLine, text: str, said: str) -> None:
    done = ruled.run_here("policy", "test", str(cases(ruled, text)))
    assert done.returncode == 3
    assert said in done.stderr
    assert "cases.yaml" in done.stderr


def test_the_examples_of_the_docs_are_right(world: CommandLine) -> None:
    text = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
    rules, examples = (part.partition("```")[0] for part in text.split("```yaml\n")[1:])
    (world.cwd / "interlock.yaml").write_text(rules, encoding="utf-8")
    done = world.run_here("policy", "test", str(cases(world, examples)))
    assert done.stdout.splitlines()[-1] == "3 cases, all passed", done.stderr
    command, *printed = (
        line.removeprefix("    ")
        for line in text.split("    $ ")[1].partition("\n\n")[0].split("\n")
    )
    asked = world.run_here(*shlex.split(command)[1:])
    assert asked.stdout.splitlines() == printed


def test_a_file_that_is_not_there(ruled: CommandLine) -> None:
    done = ruled.run_here("policy", "test", "nowhere.yaml")
    assert done.returncode == 3
    assert "cannot read nowhere.yaml: No such file or directory" in done.stderr
