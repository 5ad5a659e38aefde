"""Reload of a config: only changed servers restart, and an invalid file changes nothing."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import wait_until, wait_until_gone


def test_reload_restarts_changed_servers_only(world: CommandLine) -> None:
    world.config({"stays": DEMO, "changes": DEMO, "goes": DEMO})
    node = world.up()
    before = node.pids()
    changed = {"command": DEMO, "env": {"SOMETHING": "new"}}
    world.config({"stays": DEMO, "changes": changed, "comes": DEMO})
    node.wait_for_line("config: reloaded: started comes; stopped goes; restarted changes")
    wait_until_gone([before["goes"], before["changes"]])
    after = node.pids()
    assert after["stays"] == before["stays"]
    assert after["changes"] != before["changes"]
    assert set(after) == {"stays", "changes", "comes"}


def test_catalog_changes_restart_nothing(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    world.config({"demo": {"command": DEMO, "allow": ["roll_*"]}}, timeout="5s")
    node.wait_for_line(
        "config: reloaded: changed without a restart demo; settings changed: timeout"
    )
    assert node.pids() == before
    assert node.status()["tools"] == 1


def test_sighup_reloads_config(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    node.send(signal.SIGHUP)
    node.wait_for_line("config: reloaded: nothing changed")


def test_invalid_config_keeps_node_unchanged(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    good = path.read_text(encoding="utf-8")
    node = world.up()
    before = node.pids()
    path.write_text("servers:\n  demo: {url: ftp://nonsense}\nsevers: {}\n", encoding="utf-8")
    node.wait_for_line("config: invalid, the previous config stays in use")
    output = "".join(node.seen)
    assert "interlock.yaml:2:" in output
    assert node.pids() == before
    path.write_text(good, encoding="utf-8")
    node.wait_for_line("config: reloaded: nothing changed")
    assert node.pids() == before


def test_replaced_config_file_is_noticed(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    new = path.with_suffix(".new")
    world.config({"demo": DEMO, "more": DEMO})
    text = path.read_text(encoding="utf-8")
    node.wait_for_line("config: reloaded: started more")
    new.write_text(text.replace('"more"', '"other"'), encoding="utf-8")
    os.replace(new, path)
    node.wait_for_line("config: reloaded: started other; stopped more")


def test_deleted_config_is_reported_once(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    text = path.read_text(encoding="utf-8")
    node = world.up()
    before = node.pids()
    path.unlink()
    node.wait_for_line("config: the file is missing")
    path.write_text(f"{text}\n", encoding="utf-8")
    node.wait_for_line("config: reloaded: nothing changed")
    assert node.pids() == before


def test_reload_reports_settings_that_need_restart(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    sockets = list(world.state.rglob("node.sock"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(str(world.port), "1"), encoding="utf-8")
    node.wait_for_line("config: reloaded: nothing to apply")
    node.wait_for_line(r"listen changed in the config\. Restart the node to apply this\.")
    # Back to what it was started with: nothing waits any more.
    path.write_text(text, encoding="utf-8")
    node.wait_for_line("config: reloaded: nothing to apply")
    node.send(signal.SIGHUP)
    node.wait_for_line("config: reloaded: nothing changed")
    assert "".join(node.seen).count("Restart the node to apply this.") == 1
    assert node.pids() == before
    assert node.end() == 0
    # It cleans up what it made, not what the new config would have made.
    wait_until("its socket gone", lambda: not any(socket.exists() for socket in sockets))


@pytest.mark.feature("topics")
def test_warnings_are_logged_at_start_and_when_changed(world: CommandLine) -> None:
    token = {"name": "supervisor", "token": "${env:SUPERVISOR}"}
    world.environ["SUPERVISOR"] = "0123456789abcdef0123456789abcdef"

    def write(caller: str, **more: object) -> None:
        seats = [{"callers": ["supervisor"]}, {"callers": [caller]}]
        rooms = {"ops": {"participants": seats}}
        world.config(tokens=[token], topics={"admins": ["cheif"], "rooms": rooms}, **more)  # type: ignore[arg-type]

    write("local")
    node = world.up()
    assert "no token of this config has the name cheif" in "".join(node.seen)
    write("superviser")
    node.wait_for_line("config: reloaded: settings changed: topics")
    node.wait_for_line('has the name superviser; did you mean "supervisor"')
    # What was told is told no more, wherever it stands by now.
    write("superviser", timeout="5s")
    node.wait_for_line("config: reloaded: settings changed: timeout")
    write("local", timeout="6s")
    node.wait_for_line("config: reloaded: settings changed: timeout, topics")
    write("superviser", timeout="6s")
    node.wait_for_line("config: reloaded: settings changed: topics")
    node.wait_for_line("has the name superviser")
    node.end()
    output = "".join(node.seen)
    assert output.count("has the name cheif") == 1
    assert output.count("has the name superviser") == 2
