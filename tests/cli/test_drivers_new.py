"""`interlock drivers new`: valid files from a running server."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from tests.cli.drivers_workspace import STAND_IN, contract, listening
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("drivers")

TOOLS = {
    "read_file", "write_file", "list_directory", "query", "list_tables", "secret_length",
    "say_words",
}  # fmt: skip


def front_matter(text: str) -> dict[str, object]:
    fields = yaml.safe_load(text.split("\n---\n")[0])
    assert isinstance(fields, dict)
    return fields


def new(world: CommandLine, *more: str, **environ: str) -> str:
    """A driver for the stand-in; what was said about it."""
    result = world.run_here(
        "drivers", "new", "binary", sys.executable, "--id", "files-mcp", *more, "--", STAND_IN,
        **environ,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.mark.spec("DR-32.skill-1")
def test_new_driver_validates_and_works(world: CommandLine) -> None:
    output = new(world, "--tools", "read_file:fs-read,write_file:fs-write,list_directory")
    assert f"stand-in 3.2.1: {len(TOOLS)} tools" in output
    written = sorted(str(path.relative_to(world.cwd)) for path in world.cwd.rglob("*.md"))
    assert written == [
        ".drivers/files-mcp/DRIVER.md",
        "tools/files.list-directory/TOOL.md",
        "tools/fs-read/TOOL.md",
        "tools/fs-write/TOOL.md",
    ]
    driver = front_matter((world.cwd / written[0]).read_text())
    assert driver["transport"] == "stdio"
    assert driver["server"] == {"kind": "binary", "path": sys.executable, "args": [STAND_IN]}
    implements = driver["implements"]
    assert isinstance(implements, list)
    assert {
        implement["metadata"]["mcp"]["tool_name"]: implement["tool"] for implement in implements
    } == {
        "read_file": "./tools/fs-read/TOOL.md",
        "write_file": "./tools/fs-write/TOOL.md",
        "list_directory": "./tools/files.list-directory/TOOL.md",
    }
    # As it is, against the server itself. The stand-in's own path is what the linter dislikes.
    checked = world.run_here("drivers", "check", "--live", "--json")
    assert checked.returncode == 0, checked.stdout
    data = json.loads(checked.stdout)
    assert (data["drivers"], data["contracts"], data["problems"]) == (1, 3, [])
    assert {warning["code"] for warning in data["warnings"]} == {"hard_coded_path"}
    assert world.run_here("drivers", "check", "--strict").returncode == 1


def test_effects_and_schemas_come_from_server(world: CommandLine) -> None:
    new(world, "--tools", "read_file:fs-read,write_file:fs-write,say_words")
    reads = front_matter((world.cwd / "tools/fs-read/TOOL.md").read_text())
    assert (reads["mutates"], reads["approval"], reads["risk_level"]) == ([], "auto", 0)
    assert reads["name"] == "Read"
    writes = front_matter((world.cwd / "tools/fs-write/TOOL.md").read_text())
    assert (writes["mutates"], writes["approval"], writes["risk_level"]) == (
        ["workspace:*"],
        "always",
        3,
    )
    says = front_matter((world.cwd / "tools/files.say-words/TOOL.md").read_text())
    assert says["approval"] == "on-mutate"
    assert says["description"]


def test_new_takes_over_tools_prompts_and_resources(world: CommandLine) -> None:
    output = new(world)
    assert len(list((world.cwd / "tools").iterdir())) == len(TOOLS)
    assert "the server declares that the tool changes nothing" in output
    driver = front_matter((world.cwd / ".drivers/files-mcp/DRIVER.md").read_text())
    assert driver["prompts"] == [
        {"name": "greet", "integrate_as": "raw", "description": "A greeting."}
    ]
    assert driver["resources"] == [
        {"uri_template": "note://{name}", "integrate_as": "raw", "description": "A note."}
    ]
    assert world.run_here("drivers", "check", "--live").returncode == 0


def test_new_does_not_overwrite_files(world: CommandLine) -> None:
    new(world, "--tools", "read_file:fs-read")
    path = world.cwd / ".drivers/files-mcp/DRIVER.md"
    path.write_text("mine")
    again = world.run_here(
        "drivers", "new", "binary", sys.executable, "--id", "files-mcp", "--", STAND_IN
    )
    assert again.returncode == 3
    assert "already exists" in again.stderr
    assert path.read_text() == "mine"
    # A contract that is there is served as it is, and not written anew.
    (world.cwd / "tools/fs-read/TOOL.md").touch()
    before = (world.cwd / "tools/fs-read/TOOL.md").read_text()
    output = new(world, "--tools", "read_file:fs-read", "--force")
    assert "fs-read is an existing contract" in output
    assert path.read_text() != "mine"
    assert (world.cwd / "tools/fs-read/TOOL.md").read_text() == before


def test_existing_contract_is_bound_with_mapping(world: CommandLine) -> None:
    contract(
        world,
        "db-query",
        inputs={"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]},
        outputs={"type": "object"},
    )
    output = new(world, "--tools", "query:db-query")
    assert "does not fit" not in output
    text = (world.cwd / ".drivers/files-mcp/DRIVER.md").read_text()
    assert "sql: query" in text
    assert world.run_here("drivers", "check", "--live").returncode == 0
    # One that cannot be served is told at once.
    contract(
        world,
        "db-other",
        inputs={"type": "object", "properties": {"a": {"type": "string"}}},
        outputs={"type": "object"},
    )
    output = new(world, "--force", "--tools", "query:db-other")
    assert "Warning: the tool does not fit it: db-other: 'query' requires 'query'" in output


def test_secret_is_named_and_never_written(world: CommandLine) -> None:
    output = new(world, "--tools", "secret_length", "--secret", "STAND_IN_TOKEN",
               STAND_IN_TOKEN="hush-hush-hush")  # fmt: skip
    assert "files-mcp received the secrets stand-in-token" in output
    files = [path.read_text() for path in world.cwd.rglob("*.md")]
    assert not any("hush" in text for text in [output, *files])
    listing = front_matter((world.cwd / ".drivers/files-mcp/SECRETS.md").read_text())
    assert listing["secrets"][0]["slug"] == "stand-in-token"  # type: ignore[index]
    assert world.run_here("drivers", "check").returncode == 0
    # Without it the server cannot be asked, and the reason names it.
    missing = world.run_here("drivers", "check", "--live")
    assert missing.returncode == 4
    assert "drivers: {env_secrets: [STAND_IN_TOKEN]}" in missing.stdout
    # In this shell it is, but nobody has said that drivers may have it.
    unsaid = world.run_here("drivers", "check", "--live", STAND_IN_TOKEN="hush-hush-hush")
    assert unsaid.returncode == 4
    world.config(drivers={"env_secrets": ["STAND_IN_TOKEN"]})
    there = world.run_here("drivers", "check", "--live", STAND_IN_TOKEN="hush-hush-hush")
    assert there.returncode == 0, there.stderr


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_creates_driver_for_remote_server(world: CommandLine, transport: str) -> None:
    world.config(drivers={"local_egress": True})
    with listening(transport) as url:
        result = world.run_here("drivers", "new", "remote", url, "--id", "far-mcp", "--transport",
                              transport, "--tools", "read_file:fs-read")  # fmt: skip
        assert result.returncode == 0, result.stderr
        driver = front_matter((world.cwd / ".drivers/far-mcp/DRIVER.md").read_text())
        assert driver["transport"] == transport
        assert "install" not in driver
        assert world.run_here("drivers", "check", "--live").returncode == 0
    gone = world.run_here("drivers", "check", "--live")
    assert gone.returncode == 4
    assert "far-mcp" in gone.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pip", "x"], 2, "is not a kind of server"),
        (["npm", "x", "--transport", "http"], 2, "transport stdio"),
        (["remote", "http://127.0.0.1:1/", "--env", "A=b"], 2, "is not started"),
        (["npm", "x", "--pip", "y"], 2, "--pip is only for KIND binary"),
        (["binary", "x", "--env", "novalue"], 2, "NAME=VALUE"),
        (["binary", "x", "--secret", "lower"], 2, "capital letters"),
        (["binary", "x", "--id", "Bad_Id"], 2, "is not a valid driver id"),
        (["binary", "x", "--tools", ":y"], 2, "TOOL:CONTRACT"),
        (["binary", "x", "--tools", "a:B!"], 2, "is not a valid contract id"),
        (["npm", "x"], 2, "--yes"),
        (["binary", "./not-there"], 4, "was not found"),
        (["remote", "http://127.0.0.1:1/mcp"], 3, "drivers.local_egress"),
        (["binary", sys.executable, "--tools", "read_fil", "--", STAND_IN], 3, "did you mean"),
        (["binary", "true"], 4, "failed to start"),
    ],
)
def test_new_reports_mistakes_in_one_sentence(
    world: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    result = world.run_here("drivers", "new", *arguments)
    assert result.returncode == code, result.stderr
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    # The folder may have been made to be guarded while a server was tried.
    assert not list(world.cwd.glob(".drivers/*"))
