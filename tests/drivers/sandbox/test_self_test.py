"""The self-test of confinement. A machine that cannot confine starts no server."""

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
from tests.drivers.sandbox.confinements import needs_confinement
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")

Done = subprocess.CompletedProcess[str]


def completed_process(status: int, output: str = "", errors: str = "") -> Callable[[], Done]:
    return lambda: subprocess.CompletedProcess([], status, output, errors)


@needs_confinement
def test_this_machine_can_confine() -> None:
    assert find_problem() is None
    assert confinement_problem() is None


@needs_confinement
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_unprivileged_user_can_confine() -> None:
    program = "from interlock.drivers.sandbox.self_test import find_problem; print(find_problem())"
    result = subprocess.run(
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
    if "Permission denied" in result.stderr or "No module" in result.stderr:
        pytest.skip("nobody else may read this copy of the code")
    assert (result.stdout.strip(), result.stderr) == ("None", "")


@pytest.mark.spec("DR-32.security-8", "DR-30.security-1")
@pytest.mark.parametrize(
    ("findings", "says"),
    [
        ({"system": "darwin"}, "only on Linux, this is darwin"),
        ({"machine": "vax"}, "there is no system call filter for this machine type (vax)"),
        (
            {
                "attempt": completed_process(
                    126, "", "interlock: a process cannot be confined: new namespaces"
                )
            },
            "a process cannot be confined: new namespaces",
        ),
        (
            {"attempt": completed_process(1, "", "it has a way to 192.0.2.1")},
            "it has a way to 192.0.2.1",
        ),
        ({"attempt": completed_process(0, "something else")}, "ended with status 0"),
        ({"attempt": completed_process(-9)}, "ended with status -9"),
    ],
)
async def test_incapable_machine_is_reported(
    findings: dict[str, object], says: str, tmp_path: Path
) -> None:
    problem = find_problem(**{"settings": tmp_path, **findings})  # type: ignore[arg-type]
    assert problem is not None
    assert says in problem

    with pytest.raises(InterlockError) as error:
        await Confinement.open("github@1", [], problem=lambda: problem)
    assert error.value.failure is SANDBOX_UNAVAILABLE
    assert problem in error.value.message
    assert "github@1 is not started" in error.value.message
    assert "drivers.sandbox: advisory" in error.value.message


def test_self_test_result_is_cached_unless_it_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Done | None] = [
        None,
        completed_process(1, "", "no way")(),
        completed_process(0, "confined")(),
    ]

    def attempt() -> Done:
        result = tries.pop(0)
        if result is None:
            raise subprocess.TimeoutExpired("x", 20)
        return result

    monkeypatch.setattr(probing, "_cached_result", [])
    monkeypatch.setattr(probing, "_confine_one", attempt)
    assert "did not end" in str(confinement_problem())
    assert "no way" in str(confinement_problem())
    assert "no way" in str(confinement_problem())
    assert len(tries) == 1


def test_failed_self_test_is_reported(tmp_path: Path) -> None:
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
def test_problem_suggests_system_setting(name: str, value: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n", encoding="ascii")
    problem = find_problem(completed_process(126, "", "interlock: no"), settings=tmp_path)
    assert problem is not None
    assert problem.startswith("no; ")
    assert says in problem


@needs_confinement
@pytest.mark.spec("DR-32.security-8")
@pytest.mark.parametrize("wrong", ["folder", "socket", "filter", "parent"])
def test_failed_confinement_step_runs_nothing(wrong: str, tmp_path: Path) -> None:
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
    result = subprocess.run(
        command_line("github@1", ["echo", "it runs"]),
        env={PLAN: marshal.dumps(described).hex(), "interlock:PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (result.returncode, result.stdout) == (126, "")
    assert result.stderr.startswith("interlock: github@1 cannot be confined: ")


def test_launcher_without_plan_runs_nothing() -> None:
    result = subprocess.run(
        command_line("github@1", ["echo", "it runs"]),
        env={},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (result.returncode, result.stdout) == (126, "")


def test_plan_and_launcher_share_variable_names() -> None:
    assert launcher.PLAN == plan.PLAN
    assert launcher.PREFIX.decode() == plan.ENVIRONMENT_PREFIX


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    "egress", [["*"], ["https://a.example"], [f"a.example:{n}" for n in range(1, 40)]]
)
async def test_rejects_invalid_egress_first(egress: list[str]) -> None:
    with pytest.raises(InterlockError) as error:
        await Confinement.open("github@1", egress, problem=lambda: "not asked")
    assert error.value.failure is CONFIG
    assert error.value.message.startswith("github@1: ")


@needs_confinement
async def test_long_socket_folder_uses_shorter_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    one = await Confinement.open("github@1", ["a.example"])
    await one.close()
    assert not list(long.iterdir())
