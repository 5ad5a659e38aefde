"""The command for a server in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock.drivers.sandbox.docker import docker_argv, env_problem, find_client
from interlock.drivers.sandbox.patterns import Egress
from interlock.errors import CONFIG, SANDBOX_UNAVAILABLE, TOOL_UNAVAILABLE, InterlockError

NOTHING = Egress()
NAMED = Egress.compile(["db.example:5432"])
EVERYTHING = Egress.compile(["*"], any_egress=True)


@pytest.mark.spec("DR-32.server-10", "DR-32.security-8", "DR-30.fields-3")
def test_empty_egress_has_no_network() -> None:
    argv = docker_argv("mcp/postgres:1.2", ["--x", "a b"], ["DATABASE_URL", "B"], egress=NOTHING)
    assert argv == [
        "docker", "run", "-i", "--rm", "--network", "none", "-e", "DATABASE_URL", "-e", "B",
        "mcp/postgres:1.2", "--x", "a b",
    ]  # fmt: skip
    assert docker_argv("x", [], [], egress=NOTHING, advisory=True)[4:6] == ["--network", "none"]


@pytest.mark.spec("DR-32.server-10", "DR-32.security-8")
@pytest.mark.parametrize(
    ("egress", "port", "says"),
    [
        (NAMED, None, "cannot limit a container"),
        (NAMED, 8080, "cannot limit a container"),
        (NOTHING, 8080, "cannot be reached at port 8080"),
    ],
)
def test_rejects_egress_that_engine_cannot_enforce(
    egress: Egress, port: int | None, says: str
) -> None:
    with pytest.raises(InterlockError, match=says) as error:
        docker_argv("mcp/postgres", [], [], egress=egress, port=port, key="postgres@1")
    assert error.value.failure is SANDBOX_UNAVAILABLE
    assert "postgres@1" in error.value.message
    argv = docker_argv("mcp/postgres", [], [], egress=egress, port=port, advisory=True)
    assert "--network" not in argv


def test_any_egress_uses_network_of_engine() -> None:
    argv = docker_argv("x", ["y"], [], egress=EVERYTHING, port=8080)
    assert argv == ["docker", "run", "-i", "--rm", "-p", "127.0.0.1:8080:8080", "x", "y"]


@pytest.mark.parametrize(
    "image",
    [
        "postgres",
        "mcp/postgres:latest",
        "registry.example:5000/a/b-c:1.0",
        "registry.example/a@sha256:" + "0" * 64,
    ],
)
def test_accepts_image_names(image: str) -> None:
    assert docker_argv(image, [], [], egress=NOTHING)[-1] == image


@pytest.mark.parametrize(
    "image", ["", "-v/:/host", "--privileged", "a b", "a;b", "a\nb", "/x", "a/../b", "x" * 600]
)
def test_rejects_invalid_image_names(image: str) -> None:
    with pytest.raises(InterlockError) as error:
        docker_argv(image, [], [], egress=NOTHING)
    assert error.value.failure is CONFIG


@pytest.mark.parametrize("name", ["", "A=s3cret", "--x", "A B", "1A"])
def test_invalid_variable_name_is_rejected_without_value(name: str) -> None:
    with pytest.raises(InterlockError) as error:
        docker_argv("x", [], [name], egress=NOTHING)
    assert error.value.failure is CONFIG
    assert "s3cret" not in error.value.message


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LD_PRELOAD", "DOCKER_HOST", "DOCKER_CONFIG", "HTTPS_PROXY", "https_proxy",
        "ALL_PROXY", "SSL_CERT_FILE", "GODEBUG", "XDG_RUNTIME_DIR", "LC_ALL", "TMPDIR",
        "BASH_ENV", "PYTHONPATH", "DYLD_INSERT_LIBRARIES",
    ],
)  # fmt: skip
def test_rejects_variables_read_by_client(name: str) -> None:
    assert name in env_problem(["DATABASE_URL", name])
    with pytest.raises(InterlockError, match=f"contains {name}, which the client") as error:
        docker_argv("x", [], ["DATABASE_URL", name], egress=NOTHING)
    assert error.value.failure is CONFIG


@pytest.mark.parametrize("name", ["DATABASE_URL", "GITHUB_TOKEN", "GOOGLE_KEY", "MY_PATH", "HOMES"])
def test_accepts_other_variables(name: str) -> None:
    assert env_problem([name]) == ""


def test_client_is_found_on_path_of_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "docker").write_text("#!/bin/sh\n")
        (tmp_path / folder / "docker").chmod(0o755)
    monkeypatch.chdir(tmp_path / "here")
    # Where the node is started from, it may be a stranger's workspace.
    path = os.pathsep.join(["", ".", "../here", str(tmp_path / "none"), str(tmp_path / "there")])
    assert find_client({"PATH": path}) == str(tmp_path / "there" / "docker")
    with pytest.raises(InterlockError, match="docker is not on the node's PATH") as error:
        find_client({"PATH": ".:"}, key="box-mcp")
    assert error.value.failure is TOOL_UNAVAILABLE
