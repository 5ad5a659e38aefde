"""Machines that can confine, and machines that cannot: no server is started there."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.drivers.sandbox import launcher, plan
from interlock.drivers.sandbox import self_test as probing
from interlock.drivers.sandbox.confinement import Confinement
from interlock.drivers.sandbox.patterns import Egress
from interlock.drivers.sandbox.plan import PLAN, EgressRoutes, command_line, encode_plan
from interlock.drivers.sandbox.self_test import confinement_problem, find_problem
from interlock.errors import CONFIG, SANDBOX_UNAVAILABLE, InterlockError
from tests.drivers.sandbox.cells import needs_confinement
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")

Done = subprocess.CompletedProcess[str]


def ended(status: int, output: str = "", errors: str = "") -> Callable[[], Done]:
    return lambda: subprocess.CompletedProcess([], status, output, errors)


@needs_confinement
def test_it_is_really_tried() -> None:
    assert find_problem() is None
    assert confinement_problem() is None


@needs_confinement
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_an_ordinary_user_can_confine_too() -> None:
    program = "from interlock.drivers.sandbox.self_test import find_problem; print(find_problem())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    if "Permission denied" in done.stderr or "No module" in done.stderr:
        pytest.skip("nobody else may read this copy of the code")
    assert (done.stdout.strip(), done.stderr) == ("None", "")


@pytest.mark.spec("DR-32.security-8", "DR-30.security-1")
@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"system": "darwin"}, "only on Linux, this is darwin"),
        ({"machine": "vax"}, "there is no system call filter for this machine type (vax)"),
        (
            {"attempt": ended(126, "", "interlock: a process cannot be confined: new namespaces")},
            "a process cannot be confined: new namespaces",
        ),
        ({"attempt": ended(1, "", "it has a way to 192.0.2.1")}, "it has a way to 192.0.2.1"),
        ({"attempt": ended(0, "something else")}, "ended with status 0"),
        ({"attempt": ended(-9)}, "ended with status -9"),
    ],
)
async def test_a_machine_that_cannot(found: dict[str, object], says: str, tmp_path: Path) -> None:
    problem = find_problem(**{"settings": tmp_path, **found})  # type: ignore[arg-type]
    assert problem is not None
    assert says in problem

    with pytest.raises(InterlockError) as caught:
        await Confinement.open("github@1", [], problem=lambda: problem)
    assert caught.value.failure is SANDBOX_UNAVAILABLE
    assert problem in caught.value.message
    assert "github@1 is not started" in caught.value.message
    assert "drivers.sandbox: advisory" in caught.value.message


def test_it_is_tried_once_unless_the_machine_was_too_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Done | None] = [None, ended(1, "", "no way")(), ended(0, "confined")()]

    def attempt() -> Done:
        done = tries.pop(0)
        if done is None:
            raise subprocess.TimeoutExpired("x", 20)
        return done

    monkeypatch.setattr(probing, "_known", [])
    monkeypatch.setattr(probing, "_confine_one", attempt)
    assert "did not end" in str(confinement_problem())
    assert "no way" in str(confinement_problem())
    assert "no way" in str(confinement_problem())
    assert len(tries) == 1


def test_an_attempt_that_fails_itself(tmp_path: Path) -> None:
    def late() -> Done:
        raise subprocess.TimeoutExpired("x", 20)

    def impossible() -> Done:
        raise FileNotFoundError(2, "No such file or directory")

    assert "did not end" in str(find_problem(late))
    assert "could not be started: No such file" in str(find_problem(impossible))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
        ("kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "max_user_namespaces"),
    ],
)
def test_what_to_do_is_said(name: str, value: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n", encoding="ascii")
    problem = find_problem(ended(126, "", "interlock: no"), settings=tmp_path)
    assert problem is not None
    assert problem.startswith("no; ")
    assert says in problem


@needs_confinement
@pytest.mark.spec("DR-32.security-8")
@pytest.mark.parametrize("wrong", ["folder", "socket", "filter", "parent"])
def test_a_confinement_that_fails_half_way_runs_nothing(wrong: str, tmp_path: Path) -> None:
    """Whatever step it is: the command is not reached."""
    described = marshal.loads(
        bytes.fromhex(
            encode_plan(
                tmp_path, Egress(), EgressRoutes(), listener_path=None, hidden=(), read_only=()
            )
        )
    )
    described[wrong] = {
        "folder": os.fsencode(tmp_path / "absent"),
        "socket": os.fsencode(tmp_path / "absent"),
        "filter": b"\xff" * 16,
        "parent": 1,
    }[wrong]
    done = subprocess.run(
        command_line("github@1", ["echo", "it runs"]),
        env={PLAN: marshal.dumps(described).hex(), "interlock:PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr.startswith("interlock: github@1 cannot be confined: ")


def test_without_a_plan_nothing_is_run() -> None:
    done = subprocess.run(
        command_line("github@1", ["echo", "it runs"]),
        env={},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (126, "")


def test_both_sides_use_the_same_words() -> None:
    assert launcher.PLAN == plan.PLAN
    assert launcher.PREFIX.decode() == plan.ENVIRONMENT_PREFIX


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    "egress", [["*"], ["https://a.example"], [f"a.example:{n}" for n in range(1, 40)]]
)
async def test_an_egress_that_is_none_is_refused_before_anything(egress: list[str]) -> None:
    with pytest.raises(InterlockError) as caught:
        await Confinement.open("github@1", egress, problem=lambda: "not asked")
    assert caught.value.failure is CONFIG
    assert caught.value.message.startswith("github@1: ")


@needs_confinement
async def test_a_folder_for_sockets_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    one = await Confinement.open("github@1", ["a.example"])
    await one.close()
    assert not list(long.iterdir())
