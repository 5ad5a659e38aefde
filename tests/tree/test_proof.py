"""Tests of the authority proof and the TLS settings of a subserver."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from interlock.errors import CONFIG, InterlockError
from interlock.protocol import mcpax as ax
from interlock.tree.registrant import PROOF_LIFETIME_SECONDS, mint_proof
from tests.support.clock import run_ready_tasks
from tests.tree.scripted_parents import ROOT, ParentsAndSubserver

# `EdDSA` has a newer name by now, which not every parent knows.
pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")

AUTHORITY = "dns:Edge01.Factory.Example.com."
KEYS: dict[str, tuple[Any, Any]] = {
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), OKPKey),
    "ES256": (ec.generate_private_key(ec.SECP256R1()), ECKey),
    "ES384": (ec.generate_private_key(ec.SECP384R1()), ECKey),
    "ES512": (ec.generate_private_key(ec.SECP521R1()), ECKey),
    "RS256": (rsa.generate_private_key(65537, 2048), RSAKey),
}


def pem(key: Any, *, public: bool = False) -> str:
    if public:
        return str(
            key.public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            .decode()
        )
    return str(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
    )


@pytest.mark.spec("AX-4.2-11")
@pytest.mark.parametrize("algorithm", KEYS)
def test_proof_is_token_for_one_parent(algorithm: str) -> None:
    key, kind = KEYS[algorithm]
    proof = mint_proof(AUTHORITY, pem(key), ROOT, lambda: 1000.5)
    assert proof.type == "jwt"
    token = jwt.decode(proof.token, kind.import_key(pem(key, public=True)), algorithms=[algorithm])
    assert token.header["alg"] == algorithm
    assert token.claims["sub"] == "edge01.factory.example.com"
    assert token.claims["aud"] == ROOT
    assert (token.claims["iat"], token.claims["exp"]) == (1000, 1000 + PROOF_LIFETIME_SECONDS)
    again = mint_proof(AUTHORITY, pem(key), ROOT, lambda: 1000.5)
    assert (
        jwt.decode(
            again.token, kind.import_key(pem(key, public=True)), algorithms=[algorithm]
        ).claims["jti"]
        != token.claims["jti"]
    )


@pytest.mark.parametrize("key", ["hunter2", "", pem(KEYS["EdDSA"][0], public=True)])
def test_rejects_invalid_private_key_without_showing_it(key: str) -> None:
    with pytest.raises(InterlockError, match="not a private key") as caught:
        mint_proof(AUTHORITY, key, ROOT, lambda: 0.0)
    assert caught.value.failure is CONFIG
    assert "hunter2" not in str(caught.value)


@pytest.mark.spec("AX-4.2-4", "AX-4.2-11")
async def test_registration_contains_proof() -> None:
    key = KEYS["EdDSA"][0]

    world = ParentsAndSubserver(authority=AUTHORITY, authority_key=pem(key))
    registrant = world.registrant()
    registrant.start()
    await run_ready_tasks(30)
    (register,) = world.root.of(ax.REGISTER)
    assert register["authority"] == AUTHORITY
    assert register["authority_proof"]["type"] == "jwt"
    public = OKPKey.import_key(pem(key, public=True))
    token = jwt.decode(register["authority_proof"]["token"], public, algorithms=["EdDSA"])
    assert token.claims["aud"] == ROOT
    await registrant.end()


@pytest.mark.spec("AX-10.4-1")
async def test_tls_is_at_least_1_3() -> None:
    world = ParentsAndSubserver(url="wss://127.0.0.1:1/ax")
    registrant = world.registrant()
    registrant.start()
    await run_ready_tasks(30)
    (context,) = world.root.contexts
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    await registrant.end()


async def test_shows_unusable_tls_files(tmp_path: Path) -> None:
    world = ParentsAndSubserver(url="wss://127.0.0.1:1/ax", ca=str(tmp_path / "none.pem"))
    registrant = world.registrant()
    registrant.start()
    await run_ready_tasks(30)
    assert "none.pem" in (registrant.status().problem or "")
    assert registrant.status().symbol == "config_error"
    assert world.dialled == []
    await registrant.end()
