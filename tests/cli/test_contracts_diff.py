"""`interlock contracts diff` and `check`: files of every kind in, changes and an exit code out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc

from tests.manifests.texts import tool_text, write
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("contracts")

ONE = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
WITHOUT = {"type": "object", "properties": {"a": {"type": "string"}}}
MORE = {"type": "object", "properties": {**ONE["properties"], "c": {"type": "integer"}}}  # type: ignore[dict-item]


def tool(schema: Any = ONE, **more: Any) -> dict[str, Any]:
    return {"name": "find", "description": "Finds.", "inputSchema": schema, **more}


def put(world: CommandLine, **files: Any) -> None:
    for name, content in files.items():
        path = world.cwd / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.spec("ST-4.5.3-1")
def test_diff_reports_breaking_change_with_path(world: CommandLine) -> None:
    put(world, old=ONE, new=WITHOUT)
    result = world.run("contracts", "diff", "old.json", "new.json")
    assert result.returncode == 1
    sentence = "b was removed. Programs that write or read it depend on it."
    assert result.stdout == f"breaking  FIELD_REMOVED  /properties/b  {sentence}\n"
    assert result.stderr == "1 change, 1 breaking; requires a new major version.\n"


@pytest.mark.spec("ST-4.5.3-1")
def test_diff_accepts_compatible_change(world: CommandLine) -> None:
    put(world, old=ONE, new=MORE)
    result = world.run_here("contracts", "diff", "old.json", "new.json")
    assert result.returncode == 0
    assert result.stdout.split()[:3] == ["compatible", "FIELD_ADDED_OPTIONAL", "/properties/c"]
    assert "requires a new minor version" in result.stderr
    same = world.run_here("contracts", "diff", "old.json", "old.json")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "no changes.\n")


def test_diff_respects_role_of_schema(world: CommandLine) -> None:
    put(world, old=ONE, new={**ONE, "required": ["a"]})
    sent = world.run_here("contracts", "diff", "old.json", "new.json", "--role", "input")
    read = world.run_here("contracts", "diff", "old.json", "new.json", "--role", "output")
    assert (sent.returncode, read.returncode) == (1, 0)
    strict = world.run_here("contracts", "diff", "old.json", "new.json", "--role", "sideways")
    assert strict.returncode == 2
    assert "Must be one of input, output, both. Found 'sideways'" in strict.stderr


def test_strict_diff_reports_previously_undeclared_fields(world: CommandLine) -> None:
    put(world, old=ONE, new=MORE, tool_old=tool(), tool_new=tool(MORE))
    command = ("contracts", "diff", "old.json", "new.json", "--role", "input")
    assert world.run_here(*command).returncode == 1
    assert world.run_here(*command, "--as-declared").returncode == 0
    command = ("contracts", "diff", "tool_old.json", "tool_new.json")  # type: ignore[assignment]
    assert world.run_here(*command).returncode == 0
    strict = world.run_here(*command, "--strict")
    assert strict.returncode == 1
    assert "FIELD_CLAIMED  /inputSchema/properties/c" in strict.stdout


def test_diff_prints_json(world: CommandLine) -> None:
    put(world, old=tool(), new=tool(WITHOUT))
    result = world.run_here("contracts", "diff", "old.json", "new.json", "--json")
    assert result.returncode == 1
    data = json.loads(result.stdout)
    assert (data["kind"], data["compatible"], data["bump"]) == ("tool", False, "major")
    assert data["changes"] == [
        {
            "reason": "FIELD_REMOVED",
            "path": "/inputSchema/properties/b",
            "breaking": True,
            "message": "b was removed. Programs that send it depend on it.",
            "before": {"type": "string"},
        }
    ]


def test_diff_compares_tool_lists(world: CommandLine) -> None:
    put(
        world,
        old={"tools": [tool(), tool(name="stay")]},
        new={"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool(name="stay")]}},
        only=tool(name="stay"),
        bare=[tool()],
    )
    gone = world.run_here("contracts", "diff", "old.json", "new.json")
    assert gone.returncode == 1
    assert gone.stdout == "breaking  TOOL_REMOVED  /tools/find  find was removed.\n"
    assert world.run_here("contracts", "diff", "only.json", "new.json").returncode == 0
    assert world.run_here("contracts", "diff", "bare.json", "old.json").returncode == 0
    back = world.run_here("contracts", "diff", "new.json", "only.json")
    assert (back.returncode, back.stdout) == (0, "")


def test_diff_compares_driver_contracts(world: CommandLine) -> None:
    write(world.cwd / "old" / "TOOL.md", tool_text(version="1.4.0"))
    changing = {"mutates": ["files:workspace"], "approval": "on-mutate"}
    write(world.cwd / "new" / "TOOL.md", tool_text(version="1.5.0", **changing))
    result = world.run_here("contracts", "diff", "old/TOOL.md", "new/TOOL.md")
    assert result.returncode == 1
    assert "EFFECT_RAISED       /annotations/readOnlyHint" in result.stdout
    assert "ANNOTATION_CHANGED  /approval" in result.stdout
    assert "1.4.0 → 2.0.0" in result.stderr
    checked = world.run_here("contracts", "check", "old/TOOL.md", "new/TOOL.md")
    assert checked.returncode == 1
    assert "1.4.0 → 1.5.0 must not be released. Breaking changes detected" in checked.stderr


PROTO = 'syntax = "proto3";\npackage p;\nmessage M {\n  string a = 1;\n}\n'


def test_diff_compares_protobuf_files(world: CommandLine) -> None:
    (world.cwd / "old.proto").write_text(PROTO, encoding="utf-8")
    new = world.cwd / "new.proto"
    new.write_text(PROTO.replace("a = 1", "a = 2"), encoding="utf-8")
    result = world.run_here("contracts", "diff", "old.proto", "new.proto")
    assert result.returncode == 1
    assert result.stdout.split()[:3] == ["breaking", "FIELD_NUMBER_CHANGED", "p.M.a"]
    new.write_text(PROTO.replace("}", "  string b = 2 }"), encoding="utf-8")
    outcome = world.run_here("contracts", "diff", "old.proto", "new.proto")
    assert outcome.returncode == 3
    assert "new.proto:5:16: " in outcome.stderr
    assert "WARNING" not in outcome.stderr


def test_diff_resolves_protobuf_imports(world: CommandLine) -> None:
    folder = world.cwd / "shared"
    folder.mkdir()
    (folder / "n.proto").write_text('syntax = "proto3";\npackage n;\nmessage N {}\n')
    for name in ("old", "new"):
        text = PROTO.replace("package p;", 'package p;\nimport "n.proto";')
        text = text.replace("string a", "n.N a" if name == "new" else "n.N b")
        (world.cwd / f"{name}.proto").write_text(text, encoding="utf-8")
    lost = world.run_here("contracts", "diff", "old.proto", "new.proto")
    assert lost.returncode == 3
    assert "name the folder of its imports with --include" in lost.stderr
    result = world.run_here(
        "contracts", "diff", "old.proto", "new.proto", "-I", ".", "-I", "shared"
    )
    assert result.returncode == 1
    assert "FIELD_RENAMED  p.M.b" in result.stdout


def test_diff_compares_descriptor_sets(world: CommandLine) -> None:
    for name, text in (("old", PROTO), ("new", PROTO.replace("a = 1;", "a = 1; string b = 2;"))):
        (world.cwd / "x.proto").write_text(text, encoding="utf-8")
        out = world.cwd / name
        assert protoc.main(
            ["protoc", f"-I{world.cwd}", f"--descriptor_set_out={out}", "x.proto"]
        ) == 0  # fmt: skip
        out.rename(world.cwd / f"{name}.binpb")
    result = world.run_here("contracts", "diff", "old.binpb", "new.binpb")
    assert result.returncode == 0
    assert "FIELD_ADDED_OPTIONAL  p.M.b" in result.stdout
    (world.cwd / "bad.binpb").write_bytes(b"\xff\xff")
    bad = world.run_here("contracts", "diff", "old.binpb", "bad.binpb")
    assert bad.returncode == 3
    assert bad.stderr.startswith("bad.binpb: This is not a serialized FileDescriptorSet.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "this is not a contract"),
        (b"\xff", "this is not a contract"),
        (b"3", "this is not a contract"),
        (b"[1]", "the list contains something other than tools"),
        (b'{"type": 3}', "invalid JSON Schema: /type: "),
        (b'{"$ref": "#"}', "leads back to itself"),
        (b"[" * 100_000, "this is not a contract"),
        (b'{"name": "x", "inputSchema": {"type": 3}}', "x: inputSchema: invalid JSON Schema"),
    ],
)
def test_diff_reports_unreadable_files(world: CommandLine, content: bytes, message: str) -> None:
    put(world, old=ONE)
    (world.cwd / "new.json").write_bytes(content)
    same = world.run_here("contracts", "diff", "new.json", "new.json")
    assert same.returncode == 3
    assert message in same.stderr
    assert same.stderr.startswith("new.json: ")
    assert "Traceback" not in same.stderr


def test_diff_rejects_different_kinds(world: CommandLine) -> None:
    put(world, old=ONE, new=tool())
    result = world.run_here("contracts", "diff", "old.json", "new.json")
    assert result.returncode == 3
    assert "old.json is a JSON Schema, but new.json is a tool" in result.stderr
    assert world.run_here("contracts", "diff", "nope.json", "old.json").returncode == 3
    role = world.run_here("contracts", "diff", "new.json", "new.json", "--role", "input")
    assert role.returncode == 2
    assert "--role applies to a plain JSON Schema" in " ".join(role.stderr.split())


def check(world: CommandLine, old: str, new: str, *more: str) -> tuple[int, str, str]:
    versions = ("--old-version", old, "--new-version", new)
    result = world.run_here("contracts", "check", "old.json", "new.json", *versions, *more)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.spec("ST-4.5.3-3")
def test_check_rejects_breaking_change_without_major_version(world: CommandLine) -> None:
    put(world, old=ONE, new=WITHOUT)
    code, out, err = check(world, "1.5.0", "1.6.0")
    assert code == 1
    assert "FIELD_REMOVED  /properties/b" in out
    message = "1.5.0 → 1.6.0 must not be released. Breaking changes detected without major version"
    assert message in err
    assert "/properties/b: FIELD_REMOVED" in err
    assert "lowest version for these changes: 2.0.0" in err


@pytest.mark.spec("ST-4.5.3-4")
def test_major_version_requires_guide_and_notice(world: CommandLine) -> None:
    put(world, old=ONE, new=WITHOUT)
    (world.cwd / "guide.md").write_text("From 1.5.0 to 2.0.0: leave out b.", encoding="utf-8")
    code, _, err = check(world, "1.5.0", "2.0.0")
    assert code == 1
    assert "There is no migration guide for 1.5.0 → 2.0.0" in err
    assert "There is no deprecation notice" in err
    with_both = ("--guide", "guide.md", "--notice", "1.4.0")
    code, _, err = check(world, "1.5.0", "2.0.0", *with_both)
    assert code == 0
    assert "1.5.0 → 2.0.0 may be released. Breaking changes in major version bump" in err
    assert "warning: /properties/b: FIELD_REMOVED." in err
    code, _, err = check(world, "1.5.0", "2.0.0", "--guide", "guide.md", "--notice", "1.5.0")
    assert code == 1
    released = ("--notice", "1.2.0", "--release", "1.2.0", "--release", "1.3.0")
    assert check(world, "1.5.0", "2.0.0", "--guide", "guide.md", *released)[0] == 0


def test_check_prints_json_verdict(world: CommandLine) -> None:
    put(world, old=ONE, new=MORE)
    code, out, _ = check(world, "1.5.0", "1.5.1", "--json")
    message = json.loads(out)
    assert code == 0
    assert message["verdict"]["passed"] is True
    assert message["verdict"]["lowest"] == "1.6.0"
    assert message["verdict"]["warnings"]
    assert "changes" not in message["verdict"]


def test_check_requires_versions(world: CommandLine) -> None:
    put(world, old=ONE, new=MORE)
    result = world.run_here("contracts", "check", "old.json", "new.json", "--new-version", "1.0.0")
    assert result.returncode == 2
    assert "Add --old-version" in " ".join(result.stderr.split())
    outcome = check(world, "1.5", "1.6.0")
    assert outcome[0] == 2
    assert "Invalid version '1.5'" in " ".join(outcome[2].split())


def test_help_explains_exit_codes(world: CommandLine) -> None:
    for command in ("diff", "check"):
        output = world.run_here("contracts", command, "--help").stdout
        assert "Exit codes:" in output
        assert "3  a file cannot be read, or is not a contract" in output


def test_diff_rejects_oversized_file(
    world: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from interlock.contracts.commands import diff as contracts_diff_files

    monkeypatch.setattr(contracts_diff_files, "MAX_FILE_BYTES", 10)
    put(world, old=ONE)
    result = world.run_here("contracts", "diff", "old.json", "old.json")
    assert result.returncode == 3
    assert "the file has more than 10 bytes" in result.stderr
