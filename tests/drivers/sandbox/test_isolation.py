"""Attempts to escape from a confined process fail.

Where it can be seen, the same attempt is made without confinement first: it has to succeed, or its
failure would prove nothing.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.drivers.sandbox.confinements import (
    GREETING,
    PLAIN,
    attempt_all,
    greeting_server,
    needs_confinement,
    open_confinement,
    run_command,
    tried,
)

pytestmark = [needs_confinement, pytest.mark.usefixtures("no_leaks")]

AF_VSOCK = 40
AF_PACKET = 17
SOCK_DGRAM = 2


@pytest.mark.spec("DR-32.security-1", "DR-32.security-8", "DR-30.security-1", "DR-30.fields-3")
@pytest.mark.parametrize("egress", [[], ["db.example:1", "*.example.org"]], ids=["none", "named"])
async def test_ports_of_machine_are_unreachable(egress: list[str]) -> None:
    async with greeting_server() as other, open_confinement(*egress) as inside:
        assert await tried(None, "tcp", "127.0.0.1", other.port) == GREETING
        hosts = ("127.0.0.1", "localhost", "0.0.0.0", "127.1.2.3")
        attempts = [("tcp", host, other.port) for host in hosts]
        assert await attempt_all(inside, *attempts) == ["ECONNREFUSED"] * len(hosts)
        assert other.visits == 1


@pytest.mark.spec("DR-32.security-1", "DR-30.security-1")
async def test_other_addresses_have_no_route() -> None:
    async with open_confinement() as inside:
        around, *answers = await attempt_all(
            inside,
            ("around",),
            ("tcp", "192.0.2.1", 443),
            ("udp", "192.0.2.1", 53),
            ("udp", "2001:db8::1", 53),
            ("tcp", "::1", 1),
        )
        assert around["interfaces"] == ["lo"]
        assert answers == ["ENETUNREACH", "ENETUNREACH", "ENETUNREACH", "ECONNREFUSED"]


@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_datagrams_stay_inside(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as other:
        other.bind((host, 0))
        other.setblocking(False)
        port = other.getsockname()[1]
        assert await tried(None, "udp", host, port) == "sent"
        assert other.recv(10) == b"hello"
        async with open_confinement() as inside:
            assert await tried(inside, "udp", host, port) == "sent"
        with pytest.raises(BlockingIOError):
            other.recv(10)


@pytest.mark.spec("DR-32.security-1")
async def test_names_are_not_sent_to_resolver() -> None:
    async with open_confinement("db.example:5432") as inside:
        known, unknown, resolver = await attempt_all(
            inside,
            ("resolved", "db.example"),
            ("resolved", "other.example"),
            ("read", "/etc/resolv.conf"),
        )
        assert known == ["127.64.0.1"]
        assert unknown == "gaierror"
        assert "nameserver" not in resolver


@pytest.mark.spec("DR-32.security-1")
async def test_unix_sockets_are_unreachable(tmp_path: Path) -> None:
    async with greeting_server() as other, open_confinement() as inside:
        path, name = str(tmp_path / "s"), f"@interlock-test-{os.getpid()}"
        await other.listen(path=path)
        await other.listen(path=f"\0{name[1:]}")
        attempts = [("unix", path), ("unix", name)]
        assert await attempt_all(None, *attempts) == [GREETING] * 2
        assert await attempt_all(inside, *attempts) == ["EAFNOSUPPORT"] * 2
        assert other.visits == 2


@pytest.mark.spec("DR-32.security-1")
async def test_sockets_outside_namespaces_cannot_be_created() -> None:
    async with open_confinement() as inside:
        families = (AF_VSOCK, AF_PACKET, socket.AF_UNIX, 38, 44)
        attempts = [("family", family) for family in families]
        assert await attempt_all(inside, *attempts) == ["EAFNOSUPPORT"] * len(families)
        assert await attempt_all(
            inside,
            ("pair", SOCK_DGRAM),
            ("ring",),
            ("family", socket.AF_INET, socket.SOCK_RAW, 1),
            # What programs need is there.
            ("pair", 1),
            ("family", socket.AF_NETLINK, 3, 0),
        ) == ["EAFNOSUPPORT", "ENOSYS", "EPERM", "through", "made"]


@pytest.mark.spec("DR-32.security-1", "DR-30.security-1")
async def test_process_has_no_privileges() -> None:
    async with open_confinement() as inside:
        attempts = [("cloned",), ("cloned3",), ("administrator",)]
        assert await attempt_all(None, *attempts) == ["done"] * 3
        status, *answers = await attempt_all(inside, ("status",), *attempts)
        assert answers == ["EPERM", "ENOSYS", "EPERM"]
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


@pytest.mark.spec("DR-32.security-1")
async def test_other_processes_are_invisible(tmp_path: Path) -> None:
    own = os.getpid()
    async with open_confinement() as inside:
        assert await tried(None, "signalled", own) == "could"
        around, *answers = await attempt_all(
            inside,
            ("around",),
            ("signalled", own),
            ("trace", own),
            ("read", f"/proc/{own}/environ"),
        )
        assert answers == ["ESRCH", "ESRCH", "ENOENT"]
        assert around["processes"] == [1, 2]
        # The first process is ours, and closed to it.
        assert await attempt_all(
            inside,
            ("trace", 1),
            ("enter", "/proc/1/ns/net"),
            ("read", "/proc/1/environ"),
            ("listed", "/proc/1/root"),
        ) == ["EPERM", "EACCES", "EACCES", "EACCES"]


@pytest.mark.spec("DR-32.security-1")
async def test_namespaces_cannot_be_entered(tmp_path: Path) -> None:
    """Not even one whose file lies about: to enter takes rights over it."""

    async with open_confinement() as inside:
        assert await tried(inside, "enter", "/proc/self/ns/net") == "EPERM"


async def test_covers_cannot_be_removed(tmp_path: Path) -> None:
    state, config = tmp_path / "state", tmp_path / "node.yaml"
    state.mkdir()
    (state / "secret").write_text("s3cret", encoding="utf-8")
    config.write_text("mine", encoding="utf-8")
    link = tmp_path / "link"
    link.symlink_to(state)
    covered = {"hidden": [link, config, tmp_path / "absent"]}
    async with open_confinement(**covered) as inside:
        assert await attempt_all(
            inside,
            ("listed", state),
            ("read", state / "secret"),
            ("read", config),
            ("unmount", state),
            ("mount", tmp_path, "/tmp"),
        ) == [[], "ENOENT", "", "EPERM", "EPERM"]
    assert await tried(None, "read", state / "secret") == "s3cret"


async def test_hidden_folder_cannot_be_working_folder(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "deep").mkdir(parents=True)
    (state / "secret").write_text("s3cret", encoding="utf-8")
    async with open_confinement(hidden=[state]) as inside:
        assert await tried(inside, "listed", ".", cwd=state) == []
        status, _, errors = await run_command(inside, "true", cwd=state / "deep")
        assert (status, "No such file" in errors) == (126, True)


async def test_driver_manifest_cannot_be_changed(tmp_path: Path) -> None:
    """A driver that could write its own DRIVER.md would choose its own egress."""

    drivers, manifest = tmp_path / ".drivers", tmp_path / ".drivers" / "DRIVER.md"
    drivers.mkdir()
    manifest.write_text("egress: []", encoding="utf-8")
    async with open_confinement(read_only=[drivers]) as inside:
        launcher = Path(sys.modules["interlock"].__path__[0]) / "drivers/sandbox/launcher.py"
        answers = await attempt_all(
            inside,
            ("read", manifest),
            ("written", manifest),
            ("written", drivers / "new"),
            ("written", tmp_path / "elsewhere"),
            ("opened", launcher),
            ("written", Path(sys.prefix) / "new"),
        )
        assert answers[:4] == ["egress: []", "EROFS", "EROFS", "done"]
        # Whoever may not write there anyway hears that first.
        assert all(answer in ("EROFS", "EACCES") for answer in answers[4:]), answers
    assert manifest.read_text(encoding="utf-8") == "egress: []"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could do that outside")
@pytest.mark.spec("DR-32.security-1")
async def test_root_user_cannot_access_devices() -> None:
    """Root's files are open to root's number, whatever its rights; so they are not there."""

    async with open_confinement() as inside:
        around, *answers = await attempt_all(
            inside,
            ("around",),
            ("opened", "/proc/sys/kernel/core_pattern"),
            ("opened", "/etc/passwd"),
            ("written", "/etc/cron.d/way-out"),
            ("written", "/sys/kernel/uevent_helper"),
        )
        assert around["uid"] == 0
        assert answers[:3] == ["EROFS"] * 3
        assert answers[3] in ("EROFS", "ENOENT", "EACCES")
        devices = around["devices"]
        assert {"null", "zero", "urandom", "shm", "pts"} <= set(devices)
        for disk in os.listdir("/sys/block"):
            assert disk not in devices


@pytest.mark.spec("DR-32.security-1")
async def test_other_terminals_are_inaccessible() -> None:
    leader, follower = os.openpty()
    name = os.ttyname(follower)
    try:
        async with open_confinement() as inside:
            assert await tried(None, "opened", name) == "done"
            assert await attempt_all(inside, ("opened", name), ("listed", "/dev/shm")) == [
                "ENOENT",
                [],
            ]
            # It can have its own.
            assert await tried(inside, "terminal") == "/dev/pts/0"
    finally:
        os.close(leader)
        os.close(follower)


# -- what is in there


async def test_user_and_working_folder_are_kept(tmp_path: Path) -> None:
    async with open_confinement() as inside:
        around = await tried(inside, "around", cwd=tmp_path)
        assert (around["uid"], around["gid"]) == (os.geteuid(), os.getegid())
        assert around["cwd"] == str(tmp_path)
        assert around["files"] == [0, 1, 2]


async def test_environment_is_filtered() -> None:
    """Names that a loader or Python would heed before the confinement have no effect on it."""

    arguments = {
        **PLAIN,
        "LD_PRELOAD": "/nowhere/evil.so",
        "PYTHONPATH": "/nowhere",
        "PYTHONSTARTUP": "/nowhere/x.py",
        "TOKEN": "s3cret=ä\n",
        "HTTPS_PROXY": "http://proxy.example:8080",
        "no_proxy": "*",
        "XDG_RUNTIME_DIR": "/run/user/0",
    }
    async with open_confinement() as inside:
        shown = inside.environment(arguments)
        assert not {"LD_PRELOAD", "PYTHONPATH", "PATH"} & set(shown)
        assert not any("s3cret" in word for word in inside.argv(["x"]))
        status, output, errors = await run_command(inside, "/usr/bin/env", "-0", env=arguments)
        assert status == 0
        # The loader of `env` complains; the launcher's, before it, had nothing to load.
        assert errors.count("evil.so") == 1
        found = dict(pair.split("=", 1) for pair in output.split("\0") if pair)
        assert found == {
            name: value
            for name, value in arguments.items()
            if name not in ("HTTPS_PROXY", "no_proxy", "XDG_RUNTIME_DIR")
        }


@pytest.mark.spec("DR-30.security-4")
async def test_any_egress_uses_network_without_privileges() -> None:
    """With consent: the machine's own network, but still no rights, and no view of the rest."""

    async with greeting_server() as other, open_confinement("*", any_egress=True) as inside:
        greeting, signalled, status, environment = await attempt_all(
            inside,
            ("tcp", "127.0.0.1", other.port),
            ("signalled", os.getpid()),
            ("status",),
            ("environment",),
        )
        assert (greeting, signalled) == (GREETING, "ESRCH")
        assert int(status["CapBnd"], 16) == 0
        assert "https_proxy" not in environment
