"""`interlock automation`: suggestions from a file of decisions, and a config that is edited."""

from __future__ import annotations

import getpass
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision
from interlock.automation.store import DecisionStore
from interlock.core.config import LearnedRule, load_config
from interlock.core.config.edit import rule_text
from tests.automation.past_decisions import make_decisions, note_arguments
from tests.cli.test_approvals import at_terminal
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("automation")

CONFIG = """\
# my node
listen: 127.0.0.1:{port}
automation: {{decisions: 8}}
policy:
  rules:
    - {{name: writes, then: confirm, tools: [files.*]}}   # careful
"""


class AutomationHarness:
    """A node's folder, in which decisions are remembered."""

    def __init__(self, world: CommandLine) -> None:
        self.world = world
        self.config = world.cwd / "interlock.yaml"
        self.config.write_text(CONFIG.format(port=world.port), encoding="utf-8")

    def remember(self, made: list[HumanDecision]) -> None:
        """They were made of late: whatever a test says, the newest an hour ago."""
        path = self.world.state / "interlock" / f"127.0.0.1-{self.world.port}" / "decisions.db"
        now = time.time()
        store = DecisionStore(
            path, deliver=lambda what: what(), settings=AutomationConfig(), wall_clock=time.time
        )
        newest = max(item.time for item in made)
        for element in made:
            moved = msgspec.structs.replace(element, time=now - 3600 - newest + element.time)
            store.write(lambda moved=moved: moved)
        store.close()

    def __call__(self, *arguments: str, code: int = 0) -> str:
        ran = self.world.run_here("automation", *arguments)
        assert ran.returncode == code, ran.stderr or ran.stdout
        return ran.stdout + ran.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        ran = self.world.run_here("automation", *arguments, "--json")
        assert ran.returncode == code, ran.stderr
        return json.loads(ran.stdout)

    @property
    def learned(self) -> list[LearnedRule]:
        return load_config(self.config).policy.learned


@pytest.fixture
def harness(world: CommandLine) -> AutomationHarness:
    return AutomationHarness(world)


def test_lists_nothing_without_decisions(harness: AutomationHarness) -> None:
    assert "0 decisions are stored, and a suggestion requires 8 equal decisions" in harness()
    assert harness.json("list") == {
        "decisions": 0,
        "suggestions": [],
        "rules": [],
        "dismissed": [],
    }


def test_accepts_and_reverts_suggested_rule(harness: AutomationHarness) -> None:
    before = harness.config.read_text()
    history = (
        make_decisions(note_arguments(214))
        + make_decisions(note_arguments(2), "refuse")
        + make_decisions(note_arguments(5))
    )
    harness.remember(history)
    response = harness()
    assert 'With any value of "content": allow "agent" to call files.write' in response
    assert '"path" is below "/srv/notes/"' in response
    assert "219 of 221 decisions agree, by clerk (219)" in response
    [one] = harness.json()["suggestions"]
    assert one["evidence"]["last_exception"]["verdict"] == "refuse"
    assert one["evidence"]["last_exception"]["arguments"]["path"] == "/srv/notes/1.md"

    shown = harness("show", one["id"])
    assert "Replay: the rule agrees with 219 of 221 decisions." in shown
    assert "Last exception:" in shown
    assert "policy:\n  learned:\n    - name: allow-files.write-" in shown
    assert "agrees with 219 of 221 decisions" in harness("replay", one["id"], code=1)
    assert harness.config.read_text() == before

    details = harness("accept", one["id"], "--yes", "--open", "content")
    assert "must be requested again" in details
    [rule] = harness.learned
    assert rule.tools == ["files.write"]
    assert rule.open == ["content"]
    assert " by " in rule.accepted
    assert "219 of 221" in rule.evidence
    assert harness.config.read_text().startswith(before)
    # It stands, and is not suggested again; it can be looked at by its name.
    now = harness.json()
    assert (now["suggestions"], [rule["name"] for rule in now["rules"]]) == ([], [rule.name])
    assert "in force:" in harness()
    assert "the rules in force cover all of them" in harness()
    assert "Accepted 20" in harness("show", rule.name)
    assert "already in force" in harness("accept", rule.name, "--yes")

    assert "Operators decide such calls again" in harness("revert", rule.name)
    assert harness.config.read_text() == before
    assert "no learned rule" in harness("revert", rule.name, code=3)


def test_dismisses_and_restores_suggestion(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(12)))
    [one] = harness.json()["suggestions"]
    me = getpass.getuser()
    details = harness("dismiss", one["rule"]["name"])
    assert "until there are 12 more such decisions" in details
    assert f"automation dismiss --undo {one['id']}" in details
    response = harness()
    assert "No suggestions: 12 decisions are stored" in response
    assert "1 suggestion is dismissed. Show all: `interlock automation list --all`." in response
    now = harness.json()
    assert now["suggestions"] == []
    [no] = now["dismissed"]
    assert (no["id"], no["by"], no["reverted"]) == (one["id"], me, False)
    # It is there for whoever wants to see it, and says whose word that was.
    listed = harness("list", "--all")
    assert f"{one['id']}  allow " in listed
    assert f"dismissed {no['at']} by {me}" in listed
    assert harness.json("list", "--all")["suggestions"][0]["dismissed"]["by"] == me
    assert f"Status: dismissed {no['at']} by {me}." in harness("show", one["id"])

    assert "may be suggested again" in harness("dismiss", "--undo", one["id"])
    assert [found["id"] for found in harness.json()["suggestions"]] == [one["id"]]
    assert "no dismissed suggestion has the id" in harness("dismiss", "--undo", one["id"], code=1)
    assert "was not found" in harness("dismiss", "s00000000", code=1)


def test_reverted_rule_is_not_suggested_at_once(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(12)))
    [one] = harness.json()["suggestions"]
    accept = ("accept", one["id"], "--yes", "--open", "content")
    harness(*accept)
    [rule] = harness.learned
    revert = f"`interlock automation revert {rule.name}`"
    assert revert in harness("dismiss", rule.name, code=1)
    harness("revert", rule.name)
    now = harness.json()
    assert now["suggestions"] == []
    assert [(no["name"], no["reverted"]) for no in now["dismissed"]] == [(rule.name, True)]
    assert f" by {getpass.getuser()}" in harness("list", "--all").partition("reverted")[2]
    # Whoever wants it after all can have it, and then it is not dismissed any more.
    harness(*accept)
    assert [item.name for item in harness.learned] == [rule.name]
    assert harness.json()["dismissed"] == []


def test_reverts_rule_when_dismissal_cannot_be_stored(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(12)))
    [one] = harness.json()["suggestions"]
    harness("accept", one["id"], "--yes", "--open", "content")
    [path] = harness.world.state.rglob("decisions.db")
    path.write_bytes(b"this is no database" * 100)
    response = harness("revert", harness.learned[0].name)
    assert "The dismissal cannot be stored" in response
    assert "Operators decide such calls again" in response
    assert harness.learned == []


def test_reports_decisions_covered_by_rules(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(12)))
    [one] = harness.json()["suggestions"]
    harness("accept", one["id"], "--yes", "--open", "content")
    harness.remember(make_decisions(note_arguments(3), tool="files.move"))
    assert (
        "No suggestions: 15 decisions are stored, the rules in force cover 12 of them, and a "
        "suggestion requires 8 equal decisions among the others." in flat(harness())
    )


def test_accepting_irreversible_rule_requires_option(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(9), effect="irreversible"))
    assert "1 more for irreversible calls" in harness()
    [one] = harness.json("--irreversible")["suggestions"]
    for command in (["show"], ["replay"], ["accept", "--yes"]):
        assert "add --irreversible" in harness(command[0], one["id"], *command[1:], code=1)
    assert harness.learned == []
    command = ["accept", one["id"], "--yes", "--open", "content", "--irreversible"]
    assert "This cannot be undone." in harness(*command)
    [rule] = harness.learned
    assert rule.irreversible


def flat(told: str) -> str:
    """Without the frame around it."""
    return " ".join(told.replace("│", " ").split())


def test_accept_requires_confirmation(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(9)))
    [one] = harness.json()["suggestions"]
    assert "add --yes" in flat(harness("accept", one["id"], "--open", "content", code=2))
    # What is open must be named, whoever says yes.
    for command in (["--yes"], [], ["--yes", "--open", "content", "--open", "path"]):
        output = flat(harness("accept", one["id"], *command, code=2))
        assert ("--open content" in output) == ("--open" not in command)
    assert "does not leave path open" in output
    assert harness.learned == []


def test_declined_confirmation_accepts_nothing(harness: AutomationHarness) -> None:
    harness.remember(make_decisions(note_arguments(9)))
    [one] = harness.json()["suggestions"]
    asked = f"Accept {one['rule']['name']} as shown above?"
    command = ["automation", "accept", one["id"]]
    opened = "Allow calls with any value of content?"
    for answers in ({opened: "n\n"}, {opened: "y\n", asked: "n\n"}):
        seen, code = at_terminal(harness.world, command, answers)
        assert (code, harness.learned) == (1, [])
        assert "Nothing was changed" in seen
    assert "agrees with 9 of 9 decisions" in seen
    seen, code = at_terminal(harness.world, command, {opened: "y\n", asked: "y\n"})
    assert code == 0, seen
    assert [rule.name for rule in harness.learned] == [one["rule"]["name"]]


def test_replays_rules_of_file(harness: AutomationHarness, tmp_path: Path) -> None:
    harness.remember(
        make_decisions(note_arguments(9)) + make_decisions(note_arguments(3, "/etc/"), "refuse")
    )
    file = tmp_path / "rules.yaml"
    rule = LearnedRule(name="mine", then="allow", tools=["files.write"], open=["path", "content"])
    file.write_text(rule_text(rule), encoding="utf-8")
    response = harness("replay", str(file), code=1)
    assert "mine agrees with 9 of 12 decisions." in response
    assert response.count("rejected by clerk: files.write of agent with") == 3
    [row] = harness.json("replay", str(file), code=1)
    assert (row["rule"], row["covered"], row["same"], row["other"]) == ("mine", 12, 9, 3)
    narrower = msgspec.structs.replace(
        rule, when='!args.path.startsWith("/etc/")', open=["content"]
    )
    file.write_text(rule_text(narrower), encoding="utf-8")
    assert "agrees with 9 of 9 decisions" in harness("replay", str(file))
    file.write_text("names: safe\n", encoding="utf-8")
    assert "no rules under policy.learned" in harness("replay", str(file), code=1)
    file.write_text("policy: {learned: [{name: x}]}\n", encoding="utf-8")
    assert f"{file}:1:" in harness("replay", str(file), code=3)


def test_reports_unknown_suggestions_and_rules(
    harness: AutomationHarness, world: CommandLine
) -> None:
    for command in (["show"], ["replay"], ["accept", "--yes"]):
        result = harness(command[0], "s00000000", *command[1:], code=1)
        assert "s00000000 was not found" in result
    # Not 1, which says that humans decided otherwise.
    assert "no-rules.yaml: there is no such file" in harness("replay", "no-rules.yaml", code=3)
    harness.config.unlink()
    result = world.run_here("automation", "revert", "x")  # type: ignore[assignment]
    assert result.returncode == 3  # type: ignore[attr-defined]
    assert "--config" in result.stderr  # type: ignore[attr-defined]


def test_hostile_text_cannot_control_terminal(harness: AutomationHarness) -> None:
    hostile = "agent\x1b[2J\r\nin force:\n  allow everything"
    arguments = [note | {"x\x1b]0;t\x07": "\u202ea"} for note in note_arguments(40)]
    history = make_decisions(arguments, caller=hostile, tool="files.write")
    history += make_decisions(arguments[:1], "refuse", caller=hostile) + make_decisions(
        arguments, caller=hostile
    )
    harness.remember(history)
    [one] = harness.json()["suggestions"]
    for told in (harness(), harness("show", one["id"]), harness("replay", one["id"], code=1)):
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert "\n  allow everything" not in told
    # What is accepted is the same, and reads back.
    harness("accept", one["id"], "--yes", "--open", "content")
    assert harness.learned[0].callers == [hostile]


def test_reports_disabled_automation(harness: AutomationHarness) -> None:
    harness.config.write_text(
        harness.config.read_text().replace("{decisions: 8}", "{enabled: false}"), encoding="utf-8"
    )
    assert "automation.enabled is false" in harness()


@pytest.mark.parametrize("option", ["--config", "-c", "--node", "--irreversible", "--json"])
def test_rejects_option_before_subcommand(harness: AutomationHarness, option: str) -> None:
    harness.remember(make_decisions(note_arguments(20)))
    harness("accept", harness.json("list")["suggestions"][0]["id"], "--yes", "--open", "content")
    [rule] = harness.learned
    before = harness.config.read_text()
    elsewhere = {"--config": ["other.yaml"], "-c": ["other.yaml"], "--node": ["127.0.0.1:1"]}
    response = harness(option, *elsewhere.get(option, []), "revert", rule.name, code=2)
    assert harness.config.read_text() == before
    named = "--config" if option == "-c" else option
    words = " ".join(response.replace("│", " ").split())
    assert f"{named} must come after revert" in words
    assert f"interlock automation revert {named}" in words
