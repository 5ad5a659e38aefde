"""What drivers had installed: kept for each workspace, and noticed by a node that runs."""

from __future__ import annotations

from pathlib import Path

from interlock.config import parse_config
from interlock.node.places import guarded_from_drivers, installed_drivers_path


def test_workspaces_share_nothing_that_was_installed(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    one, other = tmp_path / "a" / "my shop", tmp_path / "b" / "my shop"
    for folder in (one, other):
        folder.mkdir(parents=True)
    for text in ("{}", f"state_dir: {tmp_path / 'given'}"):
        config = parse_config(text)
        first = installed_drivers_path(config, environ, one)
        second = installed_drivers_path(config, environ, other)
        assert first != second
        assert first.parent == second.parent
        assert first.name.startswith("my_shop-")
        # By whatever way it is reached, a workspace is the same.
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(one)
        assert installed_drivers_path(config, environ, tmp_path / "link") == first
        # No server changes the programs of another, wherever that is at home.
        assert first.parent in guarded_from_drivers(config, environ, other)
