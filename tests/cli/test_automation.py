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
from tests.automation.past import decisions, notes
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


class Desk:
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
        newest = max(one.time for one in made)
        for one in made:
            moved = msgspec.structs.replace(one, time=now - 3600 - newest + one.time)
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
def desk(world: CommandLine) -> Desk:
    return Desk(world)


def test_nothing_yet(desk: Desk) -> None:
    assert "0 decisions are stored, and a suggestion requires 8 equal decisions" in desk()
    assert desk.json("list") == {
        "decisions": 0,
        "suggestions": [],
        "rules": [],
        "dismissed": [],
    }


def test_from_a_suggestion_to_a_rule_and_back(desk: Desk) -> None:
    before = desk.config.read_text()
    history = decisions(notes(214)) + decisions(notes(2), "refuse") + decisions(notes(5))
    desk.remember(history)
    told = desk()
    assert 'With any value of "content": allow "agent" to call files.write' in told
    assert '"path" is below "/srv/notes/"' in told
    assert "219 of 221 decisions agree, by clerk (219)" in told
    [one] = desk.json()["suggestions"]
    assert one["evidence"]["last_exception"]["verdict"] == "refuse"
    assert one["evidence"]["last_exception"]["arguments"]["path"] == "/srv/notes/1.md"

    shown = desk("show", one["id"])
    assert "Replay: the rule agrees with 219 of 221 decisions." in shown
    assert "Last exception:" in shown
    assert "policy:\n  learned:\n    - name: allow-files.write-" in shown
    assert "agrees with 219 of 221 decisions" in desk("replay", one["id"], code=1)
    assert desk.config.read_text() == before

    said = desk("accept", one["id"], "--yes", "--open", "content")
    assert "must be requested again" in said
    [rule] = desk.learned
    assert rule.tools == ["files.write"]
    assert rule.open == ["content"]
    assert " by " in rule.accepted
    assert "219 of 221" in rule.evidence
    assert desk.config.read_text().startswith(before)
    # It stands, and is not suggested again; it can be looked at by its name.
    now = desk.json()
    assert (now["suggestions"], [one["name"] for one in now["rules"]]) == ([], [rule.name])
    assert "in force:" in desk()
    assert "the rules in force cover all of them" in desk()
    assert "Accepted 20" in desk("show", rule.name)
    assert "already in force" in desk("accept", rule.name, "--yes")

    assert "Operators decide such calls again" in desk("revert", rule.name)
    assert desk.config.read_text() == before
    assert "no learned rule" in desk("revert", rule.name, code=3)


def test_a_suggestion_that_nobody_wants(desk: Desk) -> None:
    desk.remember(decisions(notes(12)))
    [one] = desk.json()["suggestions"]
    me = getpass.getuser()
    said = desk("dismiss", one["rule"]["name"])
    assert "until there are 12 more such decisions" in said
    assert f"automation dismiss --undo {one['id']}" in said
    told = desk()
    assert "no suggestions: 12 decisions are stored" in told
    assert "1 suggestion is dismissed. Show all: `interlock automation list --all`." in told
    now = desk.json()
    assert now["suggestions"] == []
    [no] = now["dismissed"]
    assert (no["id"], no["by"], no["reverted"]) == (one["id"], me, False)
    # It is there for whoever wants to see it, and says whose word that was.
    listed = desk("list", "--all")
    assert f"{one['id']}  allow " in listed
    assert f"dismissed {no['at']} by {me}" in listed
    assert desk.json("list", "--all")["suggestions"][0]["dismissed"]["by"] == me
    assert f"Status: dismissed {no['at']} by {me}." in desk("show", one["id"])

    assert "may be suggested again" in desk("dismiss", "--undo", one["id"])
    assert [found["id"] for found in desk.json()["suggestions"]] == [one["id"]]
    assert "no dismissed suggestion has the id" in desk("dismiss", "--undo", one["id"], code=1)
    assert "was not found" in desk("dismiss", "s00000000", code=1)


def test_a_rule_that_was_taken_back_is_not_suggested_at_once(desk: Desk) -> None:
    desk.remember(decisions(notes(12)))
    [one] = desk.json()["suggestions"]
    accept = ("accept", one["id"], "--yes", "--open", "content")
    desk(*accept)
    [rule] = desk.learned
    revert = f"`interlock automation revert {rule.name}`"
    assert revert in desk("dismiss", rule.name, code=1)
    desk("revert", rule.name)
    now = desk.json()
    assert now["suggestions"] == []
    assert [(no["name"], no["reverted"]) for no in now["dismissed"]] == [(rule.name, True)]
    assert f" by {getpass.getuser()}" in desk("list", "--all").partition("reverted")[2]
    # Whoever wants it after all can have it, and then it is not dismissed any more.
    desk(*accept)
    assert [one.name for one in desk.learned] == [rule.name]
    assert desk.json()["dismissed"] == []


def test_a_rule_is_taken_back_whatever_is_remembered(desk: Desk) -> None:
    desk.remember(decisions(notes(12)))
    [one] = desk.json()["suggestions"]
    desk("accept", one["id"], "--yes", "--open", "content")
    [path] = desk.world.state.rglob("decisions.db")
    path.write_bytes(b"this is no database" * 100)
    said = desk("revert", desk.learned[0].name)
    assert "the dismissal cannot be stored" in said
    assert "Operators decide such calls again" in said
    assert desk.learned == []


def test_what_rules_answer_for_is_said(desk: Desk) -> None:
    desk.remember(decisions(notes(12)))
    [one] = desk.json()["suggestions"]
    desk("accept", one["id"], "--yes", "--open", "content")
    desk.remember(decisions(notes(3), tool="files.move"))
    assert (
        "no suggestions: 15 decisions are stored, the rules in force cover 12 of them, and a "
        "suggestion requires 8 equal decisions among the others." in flat(desk())
    )


def test_what_cannot_be_undone_takes_a_word_more(desk: Desk) -> None:
    desk.remember(decisions(notes(9), effect="irreversible"))
    assert "1 more for irreversible calls" in desk()
    [one] = desk.json("--irreversible")["suggestions"]
    for command in (["show"], ["replay"], ["accept", "--yes"]):
        assert "add --irreversible" in desk(command[0], one["id"], *command[1:], code=1)
    assert desk.learned == []
    command = ["accept", one["id"], "--yes", "--open", "content", "--irreversible"]
    assert "This cannot be undone." in desk(*command)
    [rule] = desk.learned
    assert rule.irreversible


def flat(told: str) -> str:
    """Without the frame around it."""
    return " ".join(told.replace("│", " ").split())


def test_nobody_accepts_without_being_asked(desk: Desk) -> None:
    desk.remember(decisions(notes(9)))
    [one] = desk.json()["suggestions"]
    assert "add --yes" in flat(desk("accept", one["id"], "--open", "content", code=2))
    # What is open must be named, whoever says yes.
    for command in (["--yes"], [], ["--yes", "--open", "content", "--open", "path"]):
        said = flat(desk("accept", one["id"], *command, code=2))
        assert ("--open content" in said) == ("--open" not in command)
    assert "does not leave path open" in said
    assert desk.learned == []


def test_whoever_is_asked_may_say_no(desk: Desk) -> None:
    desk.remember(decisions(notes(9)))
    [one] = desk.json()["suggestions"]
    asked = f"Accept {one['rule']['name']} as shown above?"
    command = ["automation", "accept", one["id"]]
    opened = "Allow calls with any value of content?"
    for answers in ({opened: "n\n"}, {opened: "y\n", asked: "n\n"}):
        seen, code = at_terminal(desk.world, command, answers)
        assert (code, desk.learned) == (1, [])
        assert "nothing was changed" in seen
    assert "agrees with 9 of 9 decisions" in seen
    seen, code = at_terminal(desk.world, command, {opened: "y\n", asked: "y\n"})
    assert code == 0, seen
    assert [rule.name for rule in desk.learned] == [one["rule"]["name"]]


def test_a_file_of_rules_is_tried(desk: Desk, tmp_path: Path) -> None:
    desk.remember(decisions(notes(9)) + decisions(notes(3, "/etc/"), "refuse"))
    file = tmp_path / "rules.yaml"
    rule = LearnedRule(name="mine", then="allow", tools=["files.write"], open=["path", "content"])
    file.write_text(rule_text(rule), encoding="utf-8")
    told = desk("replay", str(file), code=1)
    assert "mine agrees with 9 of 12 decisions." in told
    assert told.count("rejected by clerk: files.write of agent with") == 3
    [row] = desk.json("replay", str(file), code=1)
    assert (row["rule"], row["covered"], row["same"], row["other"]) == ("mine", 12, 9, 3)
    narrower = msgspec.structs.replace(
        rule, when='!args.path.startsWith("/etc/")', open=["content"]
    )
    file.write_text(rule_text(narrower), encoding="utf-8")
    assert "agrees with 9 of 9 decisions" in desk("replay", str(file))
    file.write_text("names: safe\n", encoding="utf-8")
    assert "no rules under policy.learned" in desk("replay", str(file), code=1)
    file.write_text("policy: {learned: [{name: x}]}\n", encoding="utf-8")
    assert f"{file}:1:" in desk("replay", str(file), code=3)


def test_what_is_not_there_is_said(desk: Desk, world: CommandLine) -> None:
    for command in (["show"], ["replay"], ["accept", "--yes"]):
        said = desk(command[0], "s00000000", *command[1:], code=1)
        assert "s00000000 was not found" in said
    # Not 1, which says that humans decided otherwise.
    assert "no-rules.yaml: there is no such file" in desk("replay", "no-rules.yaml", code=3)
    desk.config.unlink()
    said = world.run_here("automation", "revert", "x")  # type: ignore[assignment]
    assert said.returncode == 3  # type: ignore[attr-defined]
    assert "--config" in said.stderr  # type: ignore[attr-defined]


def test_nothing_of_strangers_takes_over_the_terminal(desk: Desk) -> None:
    hostile = "agent\x1b[2J\r\nin force:\n  allow everything"
    arguments = [one | {"x\x1b]0;t\x07": "\u202ea"} for one in notes(40)]
    history = decisions(arguments, caller=hostile, tool="files.write")
    history += decisions(arguments[:1], "refuse", caller=hostile) + decisions(
        arguments, caller=hostile
    )
    desk.remember(history)
    [one] = desk.json()["suggestions"]
    for told in (desk(), desk("show", one["id"]), desk("replay", one["id"], code=1)):
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert "\n  allow everything" not in told
    # What is accepted is the same, and reads back.
    desk("accept", one["id"], "--yes", "--open", "content")
    assert desk.learned[0].callers == [hostile]


def test_decisions_that_are_not_kept(desk: Desk) -> None:
    desk.config.write_text(
        desk.config.read_text().replace("{decisions: 8}", "{enabled: false}"), encoding="utf-8"
    )
    assert "automation.enabled is false" in desk()


@pytest.mark.parametrize("option", ["--config", "-c", "--node", "--irreversible", "--json"])
def test_an_option_before_a_command_changes_nothing(desk: Desk, option: str) -> None:
    desk.remember(decisions(notes(20)))
    desk("accept", desk.json("list")["suggestions"][0]["id"], "--yes", "--open", "content")
    [rule] = desk.learned
    before = desk.config.read_text()
    elsewhere = {"--config": ["other.yaml"], "-c": ["other.yaml"], "--node": ["127.0.0.1:1"]}
    told = desk(option, *elsewhere.get(option, []), "revert", rule.name, code=2)
    assert desk.config.read_text() == before
    named = "--config" if option == "-c" else option
    words = " ".join(told.replace("│", " ").split())
    assert f"{named} must come after revert" in words
    assert f"interlock automation revert {named}" in words
