"""Signed drivers in a live node: with `drivers.trust`, only those of a trusted key are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from interlock.manifests.signatures import SIGNATURE, sign
from tests.drivers.driver_workspace import Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")


def key(folder: Path, name: str) -> Ed25519PrivateKey:
    made = Ed25519PrivateKey.generate()
    pem = made.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / f"{name}.pem").write_bytes(pem)
    return made


async def test_unsigned_changed_and_foreign_drivers_are_rejected(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    right, wrong = key(tmp_path, "right"), key(tmp_path, "wrong")
    folders = {}
    for id in ("good-mcp", "unsigned-mcp", "foreign-mcp", "changed-mcp"):
        contract = workspace.contract(f"text.{id}")
        folders[id] = workspace.driver(id, workspace.echoes(contract)).parent
    for id in ("good-mcp", "changed-mcp"):
        sign(folders[id], right)
    sign(folders["foreign-mcp"], wrong)
    # Code that somebody put there afterwards.
    (folders["changed-mcp"] / "driver.py").write_text("driver = 1\n", encoding="utf-8")

    config = workspace.config(trust=["right.pem"], allow_code=["changed-mcp"])
    async with running(workspace, config) as node:
        assert node.tools == ["text.good-mcp"]
        assert (await node.call("text.good-mcp", text="x"))["said"] == "x"
        actual = {id: node.status(id).problem for id in folders}
        assert actual["good-mcp"] == ""
        assert "not signed" in actual["unsigned-mcp"]
        assert "not in drivers.trust" in actual["foreign-mcp"]
        assert "driver.py changed" in actual["changed-mcp"]
        states = {node.status(id).state for id in folders if id != "good-mcp"}
        assert states == {"refused"}


async def test_added_or_removed_signature_is_noticed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    right = key(tmp_path, "right")
    folder = workspace.driver("echo-mcp", workspace.echoes(workspace.contract())).parent

    async with running(workspace, workspace.config(trust=["right.pem"])) as node:
        assert node.tools == []
        sign(folder, right)
        await node.until(lambda: node.tools == ["text.echo"], "the signature")
        assert (await node.call("text.echo", text="x"))["said"] == "x"
        (folder / SIGNATURE).unlink()
        await node.until(lambda: node.tools == [], "its end")
        assert node.status().state == "refused"


@pytest.mark.parametrize("signed_again", [False, True])
async def test_invalidated_signed_driver_is_removed(tmp_path: Path, signed_again: bool) -> None:
    """Its last valid version is not kept: the file is no longer the one that was signed."""
    workspace = Workspace(tmp_path)
    right = key(tmp_path, "right")
    file = workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))
    sign(file.parent, right)

    async with running(workspace, workspace.config(trust=["right.pem"])) as node:
        assert (await node.call("text.echo", text="x"))["said"] == "x"
        file.write_text("---\nid: [echo-mcp\n")
        if signed_again:
            sign(file.parent, right)
        await node.until(lambda: node.tools == [], "its end")
        assert node.status().state == "refused"
        assert str(file) in node.status().problem


async def test_requiring_signatures_removes_retained_driver(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    key(tmp_path, "right")
    file = workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))

    async with running(workspace) as node:
        await node.call("text.echo", text="x")
        file.write_text("---\nid: [echo-mcp\n")
        await node.until(lambda: node.status().problem, "the problem in the status")
        assert node.tools == ["text.echo"]
        await node.node.apply(workspace.config(trust=["right.pem"]))
        assert node.tools == []


@pytest.mark.spec("DR-30.security-2")
async def test_tag_counts_for_trusted_drivers_only(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    for id in ("honest-mcp", "boasting-mcp"):
        workspace.driver(id, workspace.echoes(contract), policy_tags=["pii-safe"])

    policy = {"require": ["pii-safe"], "trusted_tags": {"pii-safe": ["honest-mcp"]}}
    async with running(workspace, workspace.config(policy=policy)) as node:
        await node.call("text.echo", text="x")
        assert node.status("honest-mcp").calls == 1
        assert any("pii-safe" in warning for warning in node.status("boasting-mcp").warnings)
        pinned = {"dev.interlock/driver": "boasting-mcp"}
        error = await node.refused("text.echo", pinned, text="x")
        assert error.failure.name == "policy_violation"
