"""The command for a server in a container."""

from __future__ import annotations

import pytest

from interlock.errors import CONFIG, SANDBOX_UNAVAILABLE, InterlockError
from interlock.upstreams.egress.docker import docker_argv
from interlock.upstreams.egress.patterns import Egress

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
        (NAMED, None, "the whole network or none"),
        (NAMED, 8080, "the whole network or none"),
        (NOTHING, 8080, "not reached at its port 8080"),
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
