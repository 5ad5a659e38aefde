"""Signatures of manifests: only the signed content is accepted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from interlock.core.config import parse_config
from interlock.drivers.signature_check import find_rejection
from interlock.manifests.driver_reader import read_driver
from interlock.manifests.signatures import SignatureProblem, key_id, sign, verify
from tests.drivers.driver_workspace import Workspace


def test_verified_content_must_be_signed_content(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    file = tmp_path / "DRIVER.md"
    file.write_text("signed", encoding="utf-8")
    sign(tmp_path, key)
    read = hashlib.sha256(b"signed").hexdigest()
    other = hashlib.sha256(b"another, for a moment").hexdigest()
    public = key.public_key()
    assert verify(tmp_path, [public], manifest=read) == key_id(public)
    assert verify(tmp_path, [public]) == key_id(public)
    with pytest.raises(SignatureProblem, match="is not the signed file"):
        verify(tmp_path, [public], manifest=other)


def test_rejects_driver_of_other_manifest(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    file = workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))
    key = Ed25519PrivateKey.generate()
    (tmp_path / "right.pem").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    sign(file.parent, key)
    config = parse_config("drivers: {trust: [right.pem]}\n")
    manifest = read_driver(file, root=tmp_path)
    assert find_rejection(manifest, config, tmp_path) == ""
    before = replace(manifest, digest=hashlib.sha256(b"another").hexdigest())
    assert "is not the signed file" in find_rejection(before, config, tmp_path)
