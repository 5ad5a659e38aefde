"""The smaller commands of `interlock drivers`: list, show, explain, sign, install and others."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cli.drivers_workspace import STARTED, contract, driver, entry, secrets
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("drivers")


def run_drivers(world: CommandLine, *arguments: str, code: int = 0, **environ: str) -> str:
    result = world.run_here("drivers", *arguments, **environ)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout if code == 0 else result.stdout + result.stderr


def list_drivers(world: CommandLine, **environ: str) -> dict[str, dict[str, Any]]:
    result = world.run_here("drivers", "list", "--json", **environ)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["running"] is False
    return {driver["id"]: driver for driver in data["drivers"]}


# -- list and show


def test_list_shows_states_from_files(world: CommandLine) -> None:
    world.config(drivers={"any_egress": False, "env_secrets": ["A_KEY"]})
    contract(world)
    contract(world, "db-query")
    driver(world)
    env = {"KEY": "${secrets.A_KEY}"}
    driver(
        world, "keyed-mcp", server={**STARTED, "env": env},
        auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}},
    )  # fmt: skip
    secrets(world, "keyed-mcp", "a-key")
    driver(world, "open-mcp", network={"egress": ["*"]})
    driver(
        world, "absent-mcp", server={"kind": "npm", "package": "absent"},
        install=[{"method": "npm", "package": "absent"}],
    )  # fmt: skip
    driver(world, "broken-mcp").write_text("nothing")
    result = list_drivers(world)
    assert {id: item["state"] for id, item in result.items()} == {
        "files-mcp": "unverified",
        "keyed-mcp": "unauthed",
        "open-mcp": "refused",
        "absent-mcp": "failing",
        "broken-mcp": "refused",
    }
    assert "any_egress" in result["open-mcp"]["problem"]
    assert "interlock drivers install absent-mcp" in result["absent-mcp"]["problem"]
    assert "DRIVER.md" in result["broken-mcp"]["problem"]
    assert list_drivers(world, A_KEY="hush-hush")["keyed-mcp"]["state"] == "unverified"
    text = run_drivers(world, "list", A_KEY="hush-hush")
    assert "hush" not in text
    [row] = [line for line in text.splitlines() if line.startswith("fs-read ")]
    assert set(row.split("  ")[-1].strip().split(", ")) == {"files-mcp", "keyed-mcp", "absent-mcp"}
    assert "db-query  1.0.0     no driver" in text


@pytest.mark.spec("DR-32.pertool-1", "DR-32.mapping-2")
def test_list_shows_states_of_running_node(world: CommandLine) -> None:
    """Its servers were asked: one has what its driver says, another has not."""
    world.config(drivers={"env_secrets": ["A_KEY"]})
    contract(world)
    contract(world, "fs-other")
    driver(world, server={**STARTED, "env": {"KEY": "${secrets.A_KEY}"}},
           auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}})  # fmt: skip
    secrets(world, "files-mcp", "a-key")
    driver(world, "wrong-mcp", implements=[entry("fs-other", "read_fil")])
    world.up(A_KEY="hush-hush")

    def message() -> dict[str, Any] | None:
        message: dict[str, Any] = json.loads(run_drivers(world, "list", "--json"))
        states = {driver["id"]: driver["state"] for driver in message["drivers"]}
        return message if states == {"files-mcp": "ready", "wrong-mcp": "refused"} else None

    found = wait_until("both servers to be asked", message)
    assert found["running"] is True
    assert {contract["contract"]: contract["drivers"] for contract in found["contracts"]} == {
        "fs-other": [],
        "fs-read": ["files-mcp"],
    }
    text = run_drivers(world, "list")
    assert "the server has no tool 'read_fil'. Did you mean 'read_file'?" in text
    # The secret is in the node's environment and not in ours.
    assert "fs-read goes to files-mcp@1." in run_drivers(world, "explain", "fs-read")
    assert "read_fil" in run_drivers(world, "explain", "fs-other", code=1)


def test_list_without_drivers_suggests_new(world: CommandLine) -> None:
    result = world.run_here("drivers", "list")
    assert result.returncode == 0
    assert "interlock drivers new" in result.stderr


@pytest.mark.spec("DR-32.server-4")
def test_show_prints_start_command_without_engine(world: CommandLine) -> None:
    contract(world)
    auth = {"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}}
    docker = {"kind": "docker", "image": "example/db:1", "args": ["--quick"],
              "env": {"DB": "${secrets.A_KEY}"}}  # fmt: skip
    driver(world, "box-mcp", server=docker, auth=auth)
    secrets(world, "box-mcp", "a-key")
    message = json.loads(
        run_drivers(world, "show", "box-mcp", "--json", PATH="", A_KEY="hush-hush")
    )
    assert message["command"] == [
        "docker", "run", "-i", "--rm", "--network", "none", "-e", "DB", "example/db:1", "--quick",
    ]  # fmt: skip
    assert message["secrets"] == ["A_KEY"]
    text = run_drivers(world, "show", "box-mcp", A_KEY="hush-hush")
    assert "docker run -i --rm --network none -e DB example/db:1 --quick" in text
    assert "hush" not in text
    # An engine cannot give it a choice of hosts: what would be run is shown, with why it is not.
    driver(world, "box-mcp", server=docker, auth=auth, network={"egress": ["db.example.com"]})
    text = run_drivers(world, "show", "box-mcp")
    assert "docker run -i --rm -e DB example/db:1 --quick" in text
    assert "cannot limit a container to certain hosts" in text


def test_show_reports_unknown_driver(world: CommandLine) -> None:
    contract(world)
    driver(world)
    assert 'did you mean "files-mcp"' in run_drivers(world, "show", "file-mcp", code=3)
    assert "available: files-mcp" in run_drivers(world, "show", "zzz", code=3)
    driver(world, "bad-mcp", kind="nonsense")
    assert "DRIVER.md:" in run_drivers(world, "show", "bad-mcp", code=3)


# -- explain


@pytest.fixture
def two_drivers(world: CommandLine) -> CommandLine:
    """Two drivers for one contract: one is cheaper, the other takes everything."""
    inputs = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "head": {"type": "integer"}},
        "required": ["path"],
    }
    contract(world, inputs=inputs)
    cheap = entry(
        schema_narrowing={"drop_inputs": ["head"]}, cost_override={"cost_units_per_call": 1}
    )
    driver(world, "cheap-mcp", implements=[cheap], region=["eu"], policy_tags=["cloud"])
    dear = entry(cost_override={"cost_units_per_call": 9})
    driver(world, "dear-mcp", implements=[dear])
    return world


def explain_choice(world: CommandLine, *more: str, code: int = 0) -> dict[str, Any]:
    result = world.run_here("drivers", "explain", "fs-read", "--json", *more)
    assert result.returncode == code, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.mark.spec("DR-32.motive-2")
def test_explain_names_selected_driver_and_reasons(two_drivers: CommandLine) -> None:
    for _ in range(3):
        response = explain_choice(two_drivers, "path=x")
        assert response["selected"]["provider_id"] == "cheap-mcp@1"
        assert response["order"] == ["cheap-mcp@1", "dear-mcp@1"]
    text = run_drivers(two_drivers, "explain", "fs-read", "path=x", "head=3")
    assert "fs-read goes to dear-mcp@1." in text
    assert "not cheap-mcp@1: it does not support the input head" in text
    pinned = explain_choice(two_drivers, "path=x", "--pin", "dear-mcp")
    assert pinned["selected"]["provider_id"] == "dear-mcp@1"
    assert explain_choice(two_drivers, "path=x", "--region", "us")["order"] == ["dear-mcp@1"]
    nobody = explain_choice(two_drivers, "path=x", "head=3", "--pin", "cheap-mcp", code=1)
    assert (nobody["selected"], nobody["code"]) == (None, "pinned_provider_unavailable")


def test_explain_applies_driver_policy_of_config(two_drivers: CommandLine) -> None:
    two_drivers.config(drivers={"policy": {"forbid": ["cloud"]}})
    assert explain_choice(two_drivers, "path=x")["order"] == ["dear-mcp@1"]
    two_drivers.config(drivers={"pins": {"fs-read": "dear-mcp"}})
    assert explain_choice(two_drivers, "path=x")["order"] == ["dear-mcp@1"]
    two_drivers.config(drivers={"region": "eu", "strict_region": True})
    assert explain_choice(two_drivers, "path=x")["order"] == ["cheap-mcp@1"]


def test_explain_rejects_unknown_contract_and_argument(two_drivers: CommandLine) -> None:
    assert "there is no contract 'fs-rea'" in run_drivers(two_drivers, "explain", "fs-rea", code=3)
    assert "key=value" in run_drivers(two_drivers, "explain", "fs-read", "nonsense", code=2)


# -- sign and verify


def keys(folder: Path) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / "release.pem", folder / "release.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    private.chmod(0o600)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def test_signed_driver_is_trusted(world: CommandLine) -> None:
    contract(world)
    path = driver(world)
    keys(world.cwd)
    world.config(drivers={"trust": ["release.pub"]})
    assert list_drivers(world)["files-mcp"]["state"] == "refused"
    assert "is not signed" in run_drivers(world, "verify", code=1)
    assert "DRIVER.sig" in run_drivers(world, "sign", "files-mcp", "--key", "release.pem")
    assert "signed by" in run_drivers(world, "verify", "files-mcp")
    assert list_drivers(world)["files-mcp"]["state"] == "unverified"
    path.write_text(path.read_text() + "\nMore.\n")
    assert "DRIVER.md changed after the signature." in run_drivers(world, "verify", code=1)
    assert list_drivers(world)["files-mcp"]["state"] == "refused"
    [row] = json.loads(world.run_here("drivers", "verify", "--json").stdout)
    assert row["signed_by"] is None


def test_check_reports_invalid_signature(world: CommandLine) -> None:
    contract(world)
    path = driver(world)
    (world.cwd / "other").mkdir()
    keys(world.cwd / "other")
    keys(world.cwd)
    world.config(drivers={"trust": ["release.pub"]})

    def wrong() -> list[str]:
        result = world.run_here("drivers", "check", "--json")
        problems = json.loads(result.stdout)["problems"]
        assert result.returncode == (1 if problems else 0)
        assert {problem["file"] for problem in problems} <= {str(path)}
        return [problem["message"] for problem in problems]

    [unsigned] = wrong()
    assert "not signed" in unsigned
    run_drivers(world, "sign", "files-mcp", "--key", "other/release.pem")
    [by_another] = wrong()
    assert by_another != unsigned
    assert "key" in by_another
    run_drivers(world, "sign", "files-mcp", "--key", "release.pem")
    assert wrong() == []
    path.write_text(path.read_text() + "\nMore.\n")
    [changed] = wrong()
    assert "DRIVER.md changed after the signature" in changed
    # A signature that is none.
    (path.parent / "DRIVER.sig").write_text("nothing")
    [broken] = wrong()
    assert "DRIVER.sig" in broken
    text = run_drivers(world, "check", code=1)
    assert broken.rstrip(".") in text


def test_rejects_invalid_signing_keys(world: CommandLine) -> None:
    contract(world)
    driver(world)
    assert "no trusted key" in run_drivers(world, "verify", code=3)
    (world.cwd / "bad.pem").write_text("nothing")
    assert "not a private key" in run_drivers(
        world, "sign", "files-mcp", "--key", "bad.pem", code=3
    )
    assert "Cannot read the key" in run_drivers(
        world, "sign", "files-mcp", "--key", "none.pem", code=3
    )
    assert "is not a public key" in run_drivers(world, "verify", "--key", "bad.pem", code=3)


# -- install


def test_install_requires_consent(world: CommandLine) -> None:
    contract(world)
    path = driver(
        world, server={"kind": "binary", "path": "server"},
        install=[{"method": "vendored", "path": "server"}],
    )  # fmt: skip
    program = path.parent / "server"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {STARTED['args'][0]}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    outcome = world.run_here("drivers", "install", "files-mcp")
    assert outcome.returncode == 2
    assert "vendored: server" in outcome.stderr
    assert "--yes" in outcome.stderr
    result = world.run_here("drivers", "install", "files-mcp", "--yes")
    assert result.returncode == 0, result.stderr
    assert "is installed" in result.stdout
    assert "[2/2] files-mcp: ready" in result.stderr
    again = world.run_here("drivers", "install", "files-mcp", "--yes")
    assert "was installed already" in again.stdout
    world.config(drivers={"allow_install": True})
    assert world.run_here("drivers", "install", "files-mcp", "--again").returncode == 0


def test_install_with_nothing_to_do_succeeds(world: CommandLine) -> None:
    contract(world)
    driver(world)
    result = world.run_here("drivers", "install", "files-mcp", "--yes")
    assert result.returncode == 0
    assert "nothing to do" in result.stderr
    driver(world, install=[{"method": "vendored", "path": "gone"}])
    there = world.run_here("drivers", "install", "files-mcp", "--yes")
    assert there.stdout == "files-mcp is on this machine already.\n"


def test_failed_install_prints_reason(world: CommandLine) -> None:
    contract(world)
    gone = {"kind": "binary", "path": "gone"}
    driver(world, server=gone, install=[{"method": "vendored", "path": "gone"}])
    assert "there is no gone" in run_drivers(world, "install", "files-mcp", "--yes", code=1)


# -- login and logout


def test_login_and_logout_change_driver_state(world: CommandLine) -> None:
    contract(world)
    world.config(state_dir="state")
    login = {"cmd": f"{sys.executable} -c pass", "completes_when": {"cmd": "test -e signed-in"}}
    path = driver(world, auth={"login": login})
    assert list_drivers(world)["files-mcp"]["state"] == "unauthed"
    assert "completes_when.cmd" in run_drivers(world, "login", "files-mcp", code=1)
    assert list_drivers(world)["files-mcp"]["state"] == "unauthed"
    (path.parent / "signed-in").touch()
    assert run_drivers(world, "login", "files-mcp") == "Signed in with files-mcp.\n"
    assert list_drivers(world)["files-mcp"]["state"] == "unverified"
    assert run_drivers(world, "logout", "files-mcp") == "Signed out of files-mcp.\n"
    assert list_drivers(world)["files-mcp"]["state"] == "unauthed"


def test_login_rejects_drivers_without_sign_in(world: CommandLine) -> None:
    contract(world)
    driver(world)
    assert "needs no sign-in" in world.run_here("drivers", "login", "files-mcp").stderr
    driver(world, "keyed-mcp", auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}})
    secrets(world, "keyed-mcp", "a-key")
    assert "A_KEY" in world.run_here("drivers", "login", "keyed-mcp").stderr
    assert "A_KEY" in world.run_here("drivers", "logout", "keyed-mcp").stderr


# -- schema


@pytest.mark.parametrize("name", ["driver", "mcp", "tool", "io", "secrets"])
def test_prints_schemas_for_editors(world: CommandLine, name: str) -> None:
    schema = json.loads(run_drivers(world, "schema", name))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_rejects_unknown_schema(world: CommandLine) -> None:
    assert "there is no schema" in run_drivers(world, "schema", "nothing", code=2)


def test_every_command_has_help(world: CommandLine) -> None:
    names = ["new", "check", "list", "show", "explain", "test", "install", "login", "logout",
             "sign", "verify", "schema"]  # fmt: skip
    text = run_drivers(world, "--help")
    for name in names:
        assert name in text
        assert "Usage" in run_drivers(world, name, "--help")
    assert os.linesep in text
