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
def test_no_network_for_an_empty_egress() -> None:
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
def test_what_an_engine_cannot_confine_is_refused(
    egress: Egress, port: int | None, says: str
) -> None:
    with pytest.raises(InterlockError, match=says) as caught:
        docker_argv("mcp/postgres", [], [], egress=egress, port=port, key="postgres@1")
    assert caught.value.failure is SANDBOX_UNAVAILABLE
    assert "postgres@1" in caught.value.message
    argv = docker_argv("mcp/postgres", [], [], egress=egress, port=port, advisory=True)
    assert "--network" not in argv


def test_everything_is_the_engines_own_network() -> None:
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
def test_names_of_images(image: str) -> None:
    assert docker_argv(image, [], [], egress=NOTHING)[-1] == image


@pytest.mark.parametrize(
    "image", ["", "-v/:/host", "--privileged", "a b", "a;b", "a\nb", "/x", "a/../b", "x" * 600]
)
def test_what_is_no_image_is_no_option_either(image: str) -> None:
    with pytest.raises(InterlockError) as caught:
        docker_argv(image, [], [], egress=NOTHING)
    assert caught.value.failure is CONFIG


@pytest.mark.parametrize("name", ["", "A=s3cret", "--x", "A B", "1A"])
def test_a_variable_is_named_and_its_value_is_not(name: str) -> None:
    with pytest.raises(InterlockError) as caught:
        docker_argv("x", [], [name], egress=NOTHING)
    assert caught.value.failure is CONFIG
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LD_PRELOAD", "DOCKER_HOST", "DOCKER_CONFIG", "HTTPS_PROXY", "https_proxy",
        "ALL_PROXY", "SSL_CERT_FILE", "GODEBUG", "XDG_RUNTIME_DIR", "LC_ALL", "TMPDIR",
        "BASH_ENV", "PYTHONPATH", "DYLD_INSERT_LIBRARIES",
    ],
)  # fmt: skip
def test_a_variable_that_the_client_heeds_itself_is_refused(name: str) -> None:
    assert name in env_problem(["DATABASE_URL", name])
    with pytest.raises(InterlockError, match=f"contains {name}, which the client") as caught:
        docker_argv("x", [], ["DATABASE_URL", name], egress=NOTHING)
    assert caught.value.failure is CONFIG


@pytest.mark.parametrize("name", ["DATABASE_URL", "GITHUB_TOKEN", "GOOGLE_KEY", "MY_PATH", "HOMES"])
def test_other_variables_are_the_containers(name: str) -> None:
    assert env_problem([name]) == ""


def test_the_client_is_the_one_of_the_nodes_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "docker").write_text("#!/bin/sh\n")
        (tmp_path / folder / "docker").chmod(0o755)
    monkeypatch.chdir(tmp_path / "here")
    # Where the node is started from, it may be a stranger's workspace.
    path = os.pathsep.join(["", ".", "../here", str(tmp_path / "none"), str(tmp_path / "there")])
    assert find_client({"PATH": path}) == str(tmp_path / "there" / "docker")
    with pytest.raises(InterlockError, match="docker is not on the node's PATH") as caught:
        find_client({"PATH": ".:"}, key="box-mcp")
    assert caught.value.failure is TOOL_UNAVAILABLE
