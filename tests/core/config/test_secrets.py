"""References to secrets: how they are resolved, and errors that contain no value."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core.config import ConfigError, ServerConfig, resolve, resolve_server

ENVIRON = {"A": "one", "EMPTY": "", "HOME": "/home/somebody"}


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${env:A}", "one"),
        ("Bearer ${env:A}!", "Bearer one!"),
        ("${env:A}${env:A}", "oneone"),
        ("${env:MISSING:-other}", "other"),
        ("${env:MISSING:-}", ""),
        ("${env:EMPTY}", ""),
        ("${env:EMPTY:-other}", "other"),
        ("${env:A:-other}", "one"),
        ("$A $$ $", "$A $$ $"),
        ("$${env:A}", "${env:A}"),
        ("$${x}${env:A}", "${x}one"),
    ],
)
def test_resolves_environment_references(text: str, resolved: str, tmp_path: Path) -> None:
    assert resolve(text, environ=ENVIRON, base_dir=tmp_path) == resolved


def test_resolves_file_references(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\r\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("  kept spaces \n\n")
    environ = {"HOME": str(home)}

    def read(text: str) -> str:
        return resolve(text, environ=environ, base_dir=tmp_path)

    assert read("x${file:token}y") == "xs3crety"
    assert read(f"${{file:{tmp_path}/token}}") == "s3cret"
    assert read("${file:./home/../token}") == "s3cret"
    assert read("${file:~/key}") == "  kept spaces "


def test_names_missing_variable_or_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("x ${env:JIRA_TOKEN}", environ={}, base_dir=tmp_path)
    assert str(caught.value) == (
        "the environment variable JIRA_TOKEN is not set; set it before the node starts"
    )
    with pytest.raises(ConfigError) as caught:
        resolve("${file:no/such}", environ={}, base_dir=tmp_path)
    assert str(caught.value) == (
        "the secret file no/such does not exist; "
        "create it, or correct the path (it starts at the config file's folder)"
    )


def test_rejects_unsuitable_secret_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"hunter2\xff")
    (tmp_path / "huge").write_bytes(b"x" * (1024 * 1024 + 1))
    for name, message in [
        ("folder", "cannot be read"),
        ("binary", "not UTF-8"),
        ("huge", "larger than 1 MiB"),
        ("a\0b", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            resolve(f"${{file:{name}}}", environ={}, base_dir=tmp_path)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["${", "${env:A", "${nope}", "${env:1A}", "${file:}", "${}"])
def test_rejects_invalid_reference(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        resolve(text, environ=ENVIRON, base_dir=tmp_path)


def test_resolves_references_of_server(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    server = ServerConfig(
        command="${env:A}",
        args=["--x=${env:A}", "y"],
        env={"T": "${file:token}"},
        cwd="work",
        allow=["${not touched}"],
    )
    resolved = resolve_server(server, environ=ENVIRON, base_dir=tmp_path)
    assert resolved.command == "one"
    assert resolved.args == ["--x=one", "y"]
    assert resolved.env == {"T": "t"}
    assert resolved.cwd == str(tmp_path / "work")
    assert resolved.allow == ["${not touched}"]

    remote = ServerConfig(url="http://${env:A}/", headers={"X": "${env:A}"})
    resolved = resolve_server(remote, environ=ENVIRON, base_dir=tmp_path)
    assert (resolved.url, resolved.headers, resolved.cwd) == ("http://one/", {"X": "one"}, None)

    run_oauth = ServerConfig(command="x", cwd="~/work")
    resolved = resolve_server(run_oauth, environ=ENVIRON, base_dir=tmp_path)
    assert resolved.cwd == "/home/somebody/work"
