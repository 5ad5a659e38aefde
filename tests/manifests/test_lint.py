"""Cautions about valid drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.manifests.binding import EntryBinding
from interlock.manifests.driver_reader import parse_driver
from interlock.manifests.lint import lint_bindings, lint_driver
from tests.manifests.texts import GONE, REMOTE, codes, contract, driver, driver_text, entry, read

NPM = {"kind": "npm", "package": "@scope/files"}


def caution_codes(**changes: Any) -> set[str]:
    return codes(read(**changes).cautions)


def test_accepts_ordinary_driver() -> None:
    assert read().cautions == []


@pytest.mark.spec("DR-32.principles-5")
def test_warns_about_unsuitable_transport() -> None:
    assert "transport_choice" in caution_codes(server=REMOTE, transport="stdio")
    binary = {"kind": "binary", "path": "./x"}
    assert "transport_choice" in caution_codes(server=binary, transport="http")
    assert "transport_choice" not in caution_codes(server=binary)
    assert "transport_choice" not in caution_codes(server=REMOTE, transport="sse")


@pytest.mark.spec("DR-32.transport-4")
def test_warns_about_less_preferred_transport() -> None:
    docker = {"kind": "docker", "image": "x", "port": 80}
    local = read(server=docker, transport="http")
    assert local.value is not None
    assert "transport_choice" in codes(local.cautions)
    speaks_up = {"uri_template": "x", "integrate_as": "raw"}
    remote = read(server=REMOTE, transport="http", resources=[speaks_up])
    assert "transport_choice" in codes(remote.cautions)
    assert "transport_choice" not in caution_codes(server=REMOTE, transport="http")


@pytest.mark.spec("DR-32.location-2")
def test_warns_about_folder_name_and_id_suffix() -> None:
    assert read().cautions == []
    elsewhere = parse_driver(driver_text(), Path(".drivers/other/DRIVER.md"))
    assert elsewhere.value is not None
    assert codes(elsewhere.cautions) == {"folder_name"}
    unmarked = parse_driver(driver_text(id="files"), Path(".drivers/files/DRIVER.md"))
    assert unmarked.value is not None
    assert codes(unmarked.cautions) == {"id_suffix"}


@pytest.mark.spec("DR-32.skill-2")
@pytest.mark.parametrize(
    "server",
    [
        {**NPM, "args": ["/workspace"]},
        {**NPM, "args": ["--root=/srv/data"]},
        {**NPM, "args": ["~/files"]},
        {**NPM, "args": ["C:\\files"]},
        {**NPM, "env": {"ROOT": "/home/somebody/files"}},
        {"kind": "binary", "path": "/home/somebody/server"},
    ],
)
def test_warns_about_hard_coded_paths(server: dict[str, Any]) -> None:
    assert "hard_coded_path" in caution_codes(server=server)


def test_accepts_relative_paths() -> None:
    assert caution_codes(server={**NPM, "args": [".", "./a", "--flag", "a/b"]}) == set()
    assert caution_codes(server={"kind": "binary", "path": "/usr/local/bin/server"}) == set()


@pytest.mark.spec("DR-32.skill-2")
@pytest.mark.parametrize(
    "server",
    [
        {**NPM, "env": {"TENANT_ID": "t1"}},
        {**NPM, "env": {"USER_ID": "${secrets.USER_ID}"}},
        {**NPM, "args": ["--tenant", "t1"]},
        {**NPM, "args": ["--user-id=u1"]},
    ],
)
def test_warns_about_tenant_fixed_at_spawn(server: dict[str, Any]) -> None:
    assert "tenant_at_spawn" in caution_codes(server=server, auth={"state": {"env": ["USER_ID"]}})


@pytest.mark.spec("DR-32.skill-2")
def test_warns_about_remote_without_tls() -> None:
    server = {"kind": "remote", "url": "http://mcp.example.com/"}
    assert "remote_without_tls" in codes(
        lint_driver(driver(server=server, transport="http", plain_http=True))
    )
    assert "remote_without_tls" not in caution_codes(server=REMOTE, transport="http")


@pytest.mark.spec("DR-32.skill-2")
def test_warns_about_unchecked_or_missing_tool_names() -> None:
    unnamed = driver(implements=[entry(metadata=GONE)], has_code=True)
    bound = [EntryBinding(unnamed.implements[0], contract())]
    assert "tool_name_unchecked" in codes(lint_bindings(unnamed, bound))
    named = driver()
    bound = [EntryBinding(named.implements[0], contract())]
    assert lint_bindings(named, bound, offered=["read_file"]) == []
    (caution,) = lint_bindings(named, bound, offered=["reed_file"])
    assert caution.code == "tool_name_missing"
    assert "read_file" in caution.sentence


@pytest.mark.spec("DR-30.fields-11")
def test_warns_about_discouraged_fields() -> None:
    reading = read(kind="cli", server=GONE, transport="stdio", driver="x", concrete=True)
    assert reading.value is not None
    sentences = [
        caution.sentence for caution in reading.cautions if caution.code == "discouraged_field"
    ]
    assert len(sentences) == 3
    assert "discouraged_field" not in caution_codes()


@pytest.mark.spec("DR-30.security-3")
def test_warns_about_any_egress_and_secrets_in_text() -> None:
    assert "any_egress" in caution_codes(network={"egress": ["*"]})
    assert "any_egress" not in caution_codes(network={"egress": ["*.example.com"]})
    secret = "sk-0123456789abcdefghij"
    for changes in (
        {"metadata": {"host": {"note": f"use {secret}"}}},
        {"metadata": {"host": {"api_key": "correct horse battery"}}},
        {"examples": [{"goal": "x", "note": secret}]},
        {
            "implements": [
                entry(metadata={"mcp": {"tool_name": "x"}, "a": {"password": "12345678"}})
            ]
        },
    ):
        cautions = read(**changes).cautions
        assert "secret_in_text" in codes(cautions)
        assert secret not in str(cautions)
        assert "battery" not in str(cautions)
    assert caution_codes(metadata={"host": {"note": "hello", "key_path": "a"}}) == set()


def test_warns_about_secret_in_environment() -> None:
    cautions = read(server={**NPM, "env": {"API_TOKEN": "0123456789abc"}}).cautions
    assert codes(cautions) == {"literal_secret"}
    assert "0123456789" not in str(cautions)
    assert caution_codes(server={**NPM, "env": {"LOG_LEVEL": "debug"}}) == set()


def test_warns_about_unsupported_settings() -> None:
    assert "install_method" in caution_codes(install=[{"method": "brew", "package": "x"}])
    assert "install_method" not in caution_codes(install=[{"method": "npm", "package": "x"}])
    assert "runner_engine" in caution_codes(runner={"engine": "firecracker"})
    assert "unknown_sign" in caution_codes(auth={"expiry": {"detect": "moon_phase:full"}})
    assert "refresh_never" in caution_codes(auth={"refresh": {"cmd": "x"}})


def test_warns_about_unused_context() -> None:
    wants = contract(metadata={"contextSchema": {"type": "object"}})
    one = driver()
    bound = [EntryBinding(one.implements[0], wants)]
    assert codes(lint_bindings(one, bound, hooks=())) == {"context_unused"}
    assert lint_bindings(one, bound, hooks=("build_arguments",)) == []
    assert lint_bindings(one, bound) == []


@pytest.mark.spec("DR-32.resources-4")
def test_warns_about_missing_integrations() -> None:
    prompt = {"name": "sum-up", "integrate_as": "raw"}
    resource = {
        "uri_template": "file:///{path}",
        "integrate_as": "ref_kind",
        "ref_kind_id": "mcp_files",
    }
    one = driver(prompts=[prompt], resources=[resource])
    assert lint_bindings(one, (), prompts=["sum-up"], resources=["file:///{path}"]) == []
    assert codes(lint_bindings(one, (), prompts=[], resources=[])) == {
        "prompt_missing", "resource_missing",
    }  # fmt: skip
    for incomplete in (
        {"prompts": [{**prompt, "integrate_as": "skill_block"}]},
        {"resources": [{**resource, "ref_kind_id": GONE}]},
    ):
        (field,) = incomplete
        kept = {key: value for key, value in incomplete[field][0].items() if value is not GONE}
        assert read(**{field: [kept]}).value is None  # type: ignore[arg-type]
    unmarked = read(resources=[{**resource, "ref_kind_id": "files"}])
    assert unmarked.value is not None
    assert codes(unmarked.cautions) == {"ref_kind_prefix"}


def test_caution_has_line_and_sentence() -> None:
    text = driver_text(network={"egress": ["*"]})
    (caution,) = parse_driver(text, Path(".drivers/files-mcp/DRIVER.md")).cautions
    assert text.splitlines()[caution.line - 1].strip() == "egress:"
    assert str(caution).startswith(f".drivers/files-mcp/DRIVER.md:{caution.line}: egress")
