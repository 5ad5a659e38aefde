"""Tests of the channels that show verification codes."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from interlock.aql.code_channels import (
    AlertChannel,
    CommandChannel,
    install_channels,
    make_desktop_channel,
)
from interlock.aql.config import ChannelConfig
from interlock.aql.safety.codes import VerificationCodes
from tests.support.timeouts import HANG_TIMEOUT

RECORDS_INPUT = (
    "import os, sys, json; "
    "open(sys.argv[1], 'a').write(json.dumps([sys.stdin.read(), sys.argv, dict(os.environ)])); "
    "print('heard')"
)


def run(test: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test

    asyncio.run(within())


def recording_command(tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", RECORDS_INPUT, str(tmp_path / "heard")]


@pytest.mark.spec("AQ-8.8.6-1")
async def test_only_command_input_contains_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    codes = VerificationCodes()
    command = ChannelConfig(kind="command", command=[*recording_command(tmp_path), "${env:TO}"])
    environ = {**os.environ, "TO": "ops@example.org"}
    [channel] = install_channels([command], codes, environ, tmp_path)
    # Where there is another way, a desk shows nothing unless it is said so.
    assert not codes.shown_at_terminal
    codes.create("the-challenge", "The agent of ada wants to do “x”.")
    assert codes.reveal("the-challenge") is None
    await channel.wait_written()
    import json

    said, argv, environment = json.loads((tmp_path / "heard").read_text())
    codes.shown_at_terminal = True
    code = codes.reveal("the-challenge")
    assert code is not None
    assert code in said
    assert "the-challenge" in said
    assert argv[2] == "ops@example.org"
    assert code not in json.dumps([argv, environment])
    out = capfd.readouterr()
    assert code not in out.out + out.err + caplog.text
    assert "heard" not in out.out


def test_logs_failed_command_without_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        channels = [
            CommandChannel(["/nowhere/at/all"], {}),
            CommandChannel([sys.executable, "-c", "raise SystemExit(3)"], {}),
            CommandChannel([sys.executable, "-c", "import time; time.sleep(60)"], {}, timeout=0.5),
        ]
        for channel in channels:
            channel.show("id", "SECRETCODE", "sentence")
        for channel in channels:
            await channel.wait_written()

    run(test())
    assert len(caplog.records) == 3
    assert "SECRETCODE" not in caplog.text


@pytest.mark.parametrize("go", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("program", "troubles"), [("true", []), ("false", ["exit status 1"])])
def test_logs_command_that_ends_before_reading(
    go: Callable[[Any], None],
    program: str,
    troubles: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = asyncio.create_subprocess_exec

    async def ended(*command: str, **more: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **more)
        await process.wait()
        return process

    async def test() -> None:
        channel = CommandChannel([program], dict(os.environ))
        channel.show("id", "SECRETCODE", "sentence")
        (task,) = channel._tasks
        async with asyncio.timeout(HANG_TIMEOUT):
            await task

    monkeypatch.setattr(asyncio, "create_subprocess_exec", ended)
    go(test())
    assert [one.getMessage().split(": ")[1] for one in caplog.records] == troubles


async def test_close_ends_hanging_command() -> None:
    channel = CommandChannel([sys.executable, "-c", "import time; time.sleep(60)"], {})
    channel.show("id", "code", "sentence")
    await asyncio.sleep(0)
    await channel.close()


@pytest.mark.spec("AQ-8.8.6-1")
async def test_window_shows_code_and_alert_does_not(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        'open(__file__ + ".in", "a").write(sys.stdin.read() + repr(sys.argv))\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    display = {"DISPLAY": ":0", "PATH": os.environ["PATH"]}
    assert make_desktop_channel({}, lambda _: str(program)) is None
    assert make_desktop_channel(display, lambda _: None) is None
    window = make_desktop_channel(display, lambda name: str(program) if name == "zenity" else None)
    assert window is not None
    window.show("id", "SECRETCODE", "sentence")
    await window.wait_written()
    heard = (tmp_path / "program.in").read_text()
    assert "SECRETCODE" in heard.partition("[")[0]
    assert "SECRETCODE" not in heard.partition("[")[2]
    (tmp_path / "program.in").unlink()
    knock = make_desktop_channel(
        display, lambda name: str(program) if name == "notify-send" else None
    )
    assert isinstance(knock, AlertChannel)
    knock.show("id", "SECRETCODE", "sentence")
    await knock.wait_written()
    assert "SECRETCODE" not in (tmp_path / "program.in").read_text()


def test_falls_back_to_terminal_without_window(tmp_path: Path) -> None:
    codes = VerificationCodes()
    made = install_channels([ChannelConfig(kind="desktop")], codes, {}, tmp_path)
    assert made == []
    assert codes.shown_at_terminal
    install_channels([ChannelConfig(kind="terminal")], codes, {}, tmp_path)
    assert codes.shown_at_terminal
