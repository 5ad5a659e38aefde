"""DRIVER.md: sign-in, health checks, version checks and installation (AIP-30)."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.manifests.model import HttpProbe
from tests.manifests.texts import driver, only, read

# -- sign-in


@pytest.mark.spec("DR-30.auth-1")
def test_reads_auth_fields() -> None:
    auth = driver(
        auth={
            "ref": "./SECRETS.md",
            "state": {"paths": ["~/.config/x"], "env": ["ACME_KEY"]},
            "login": {
                "cmd": "x login",
                "url": "https://x.example/oauth?client_id=…",
                "interactive": True,
                "requires_callback_url": True,
                "completes_when": {
                    "http": {"method": "HEAD", "url": "https://x.example/me", "expect_status": 204}
                },
            },
            "refresh": {"cmd": "x refresh", "url": "https://x.example/r", "every": "PT1H"},
            "expiry": {"detect": "http_status:401"},
        }
    ).auth
    assert auth is not None
    assert auth.ref == "./SECRETS.md"
    assert auth.state_paths == ("~/.config/x",)
    assert auth.state_env == ("ACME_KEY",)
    assert auth.login is not None
    assert auth.login.completes_when is not None
    assert auth.login.completes_when.http == HttpProbe("https://x.example/me", "HEAD", 204)
    assert auth.refresh is not None
    assert auth.refresh.every == 3600.0
    assert auth.expiry_detect == ("http_status:401",)
    completes = {"cmd": "x whoami", "exit_code": 3}
    by_command = driver(auth={"login": {"completes_when": completes}}).auth
    assert by_command is not None
    assert by_command.login is not None
    assert by_command.login.completes_when is not None
    assert by_command.login.completes_when.exit_code == 3


@pytest.mark.spec("DR-30.auth-1")
@pytest.mark.parametrize(
    ("auth", "path"),
    [
        ({"reff": "x"}, "auth.reff"),
        ({"state": {"files": []}}, "auth.state.files"),
        ({"state": {"env": ["lower"]}}, "auth.state.env[0]"),
        ({"login": {"command": "x"}}, "auth.login.command"),
        ({"login": {"completes_when": {"code": 0}}}, "auth.login.completes_when.code"),
        ({"login": {"completes_when": {}}}, "auth.login.completes_when"),
        ({"login": {"interactive": "yes"}}, "auth.login.interactive"),
        ({"refresh": {"every": "PT"}}, "auth.refresh.every"),
        ({"refresh": {"every": "1 month"}}, "auth.refresh.every"),
        ({"refresh": {"every": "PT0S"}}, "auth.refresh.every"),
        ({"expiry": {"detect": []}}, "auth.expiry.detect"),
        ({"expiry": {"detect": "http_status:none"}}, "auth.expiry.detect"),
        ({"expiry": {"detect": "exit_code:"}}, "auth.expiry.detect"),
        ({"expiry": {"detects": "x"}}, "auth.expiry.detects"),
    ],
)
def test_rejects_invalid_auth_fields(auth: dict[str, Any], path: str) -> None:
    problems = read(auth=auth).problems
    assert path in {problem.path for problem in problems}, problems


def test_error_does_not_repeat_secret() -> None:
    secret = "sk-0123456789abcdefghijkl"
    reading = read(auth={"state": {"env": [secret]}}, server={"kind": "remote", "url": secret})
    assert reading.problems
    assert secret not in str(reading.problems)


# -- health, install, versions


@pytest.mark.spec("DR-30.health-1")
def test_reads_health_check_fields() -> None:
    result = driver(
        health_check={
            "method": "http",
            "http": {"url": "https://x.example/health"},
            "cmd": "x ping",
            "expect_exit": 2,
            "every": "PT10M",
            "timeout_ms": 100,
        }
    ).health_check
    assert result is not None
    assert result.http == HttpProbe("https://x.example/health", "GET", 200)
    assert (result.cmd, result.expect_exit, result.every, result.timeout_ms) == (
        "x ping",
        2,
        600.0,
        100,
    )
    for method in ("ping", "noop"):
        plain = driver(health_check={"method": method}).health_check
        assert plain is not None
        assert (plain.timeout_ms, plain.every) == (5000, 300.0)


@pytest.mark.spec("DR-30.health-1")
@pytest.mark.parametrize(
    ("check", "path"),
    [
        ({}, "health_check"),
        ({"method": "tcp"}, "health_check.method"),
        ({"method": "exec"}, "health_check"),
        ({"method": "http"}, "health_check"),
        ({"method": "ping", "timeout_ms": 99}, "health_check.timeout_ms"),
        ({"method": "ping", "often": 1}, "health_check.often"),
        ({"method": "http", "http": {"url": "x"}}, "health_check.http.url"),
        (
            {"method": "http", "http": {"url": "http://x", "method": "PUT"}},
            "health_check.http.method",
        ),
    ],
)
def test_rejects_invalid_health_check_fields(check: dict[str, Any], path: str) -> None:
    only(read(health_check=check), path)


def test_checks_version_check_fields() -> None:
    check = {"cmd": "x --version", "parse": r"v(\S+)", "range": ">=0.5"}
    result = driver(version_check=check).version_check
    assert result is not None
    assert result.timeout_ms == 5000
    for key, value, text in (
        ("parse", "v", "no group"),
        ("parse", "(", "regular expression"),
        ("range", "newest", "range"),
        ("timeout_ms", 1, "at least"),
    ):
        message = only(read(version_check={**check, key: value}), f"version_check.{key}")
        assert text in message
    assert "range is missing" in only(
        read(version_check={"cmd": "x", "parse": "(x)"}), "version_check"
    )


def test_keeps_install_order_and_settings() -> None:
    steps = [{"method": "npm", "package": "x", "global": False}, {"method": "brew", "package": "x"}]
    result = driver(install=steps).install
    assert [step.method for step in result] == ["npm", "brew"]
    assert result[0].settings == {"package": "x", "global": False}
    only(read(install=[{"package": "x"}]), "install[0]")
    only(read(install=[{"method": "download", "sha256": "abc"}]), "install[0].sha256")
