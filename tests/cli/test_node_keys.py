"""`interlock keys node`: list and rotate the keys of a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlock.cli.node_keys import node_keys
from interlock.errors import InterlockError
from interlock.trust.signing_keys import SigningKeys


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "interlock.yaml"
    path.write_text(f"listen: 127.0.0.1:0\nstate_dir: {tmp_path / 'state'}\n", encoding="utf-8")
    return path


def run(*words: str) -> str:
    result = CliRunner().invoke(node_keys, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.spec("ST-4.8.5-3")
def test_lists_and_rotates_node_keys(config: Path, tmp_path: Path) -> None:
    kept = SigningKeys(tmp_path / "state" / "signing_keys.json")
    first = kept.kid
    [row] = json.loads(run("list", "--json", "--config", str(config)))
    assert (row["kid"], row["signs"], row["retired"]) == (first, True, None)
    new = run("rotate", "--config", str(config)).strip().removeprefix("The node signs with ")
    assert kept.refresh() is True
    assert kept.kid == new != first
    rows = run("list", "--config", str(config)).splitlines()
    assert [row.split()[0] for row in rows] == [new, first]
    assert rows[0].endswith("signs")
    assert "until" in rows[1]


def test_private_keys_are_never_printed(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "state" / "signing_keys.json"
    SigningKeys(path)
    [key] = json.loads(path.read_bytes())["keys"]
    printed = run("list", "--json", "--config", str(config)) + run("list", "--config", str(config))
    assert key["d"] not in printed


@pytest.mark.parametrize("command", ["list", "rotate"])
def test_node_keys_require_earlier_run(config: Path, command: str, tmp_path: Path) -> None:
    with pytest.raises(InterlockError, match="has run here"):
        run(command, "--config", str(config))
    assert not (tmp_path / "state").exists()
