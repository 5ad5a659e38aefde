"""Problems of `identity` in the config."""

from __future__ import annotations

import pytest

from interlock.core.config import Config, ConfigError, check_exposure
from interlock.core.config.load import parse_config
from interlock.core.config.trust import CertificateConfig, IdentityConfig, IssuerConfig

ISSUER = "{issuer: https://a.example}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"identity: {{issuers: [{ISSUER}, {ISSUER}]}}", "listed twice"),
        ("identity: {issuers: [{issuer: x}]}", "cannot be fetched"),
        ("identity: {issuers: [{issuer: http://a.example}]}", "cannot be fetched"),
        ("identity: {issuers: [{issuer: x, jwks_url: http://a.example/k}]}", "cannot be fetched"),
        ("identity: {issuers: [{issuer: x, jwks_url: https://a/k, jwks_file: f}]}", "remove one"),
        ("identity: {issuers: [{issuer: https://a.example, algorithms: []}]}", "no signature"),
        ("identity: {issuers: [{issuer: https://a.example, algorithms: [HS256]}]}", "HS256"),
        ("identity: {issuers: [{issuer: https://a.example, algorithms: [none]}]}", "none"),
        (f"identity: {{issuers: [{ISSUER}, {{issuer: https://b.example}}]}}", "be confused"),
        (
            f"identity: {{issuers: [{ISSUER}, {{issuer: https://b.example, prefix: 'corp:'}}]}}",
            "be confused",
        ),
        (
            "identity: {issuers: [{issuer: https://a.example, prefix: 'corp:eu:'}], "
            "introspection: [{url: https://b/i, client_id: n, "
            'client_secret: "${env:T}", prefix: "corp:"}]}',
            "be confused",
        ),
        ("identity: {certificates: [{name: a, san: b}]}", "tls.client_ca"),
        (
            "{tls: {certificate: c, key: k, client_ca: ca}, "
            "identity: {certificates: [{name: parent, san: b}]}}",
            "reserved for the node",
        ),
        (
            "identity: {introspection: [{url: http://a.example/i, client_id: n, "
            'client_secret: "${env:T}"}]}',
            "http is not allowed",
        ),
        ("identity: {introspection: [{url: https://a/i, client_id: n, client_secret: open}]}", ""),
        ("identity: {local_scopes: [everything]}", ""),
        ("{listen: 0.0.0.0:8420, identity: {local_roles: [x]}}", "token"),
    ],
    ids=str,
)
def test_reports_problem_with_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert reason in caught.value.message
    assert "interlock.yaml:1:" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "identity: {issuers: [{issuer: https://a.example}]}",
        "identity: {issuers: [{issuer: http://127.0.0.1:9000}]}",
        "identity: {issuers: [{issuer: https://a.example, prefix: 'a:'}, "
        "{issuer: https://b.example, prefix: 'b:'}]}",
        "identity: {issuers: [{issuer: x, jwks_file: keys.json}]}",
        "identity: {issuers: [{issuer: x, jwks_url: http://localhost:1/k}]}",
        "{listen: 0.0.0.0:8420, identity: {issuers: [{issuer: https://a.example}]}}",
        "{tls: {certificate: c, key: k, client_ca: ca}, "
        "identity: {certificates: [{name: edge, san: '*.example.com'}]}}",
    ],
)
def test_accepts_valid_identity(text: str) -> None:
    parse_config(text)


@pytest.mark.spec("ST-4.8.5-4")
def test_requires_caller_identity_for_exposed_address() -> None:
    for identity in (
        IdentityConfig(issuers=[IssuerConfig(issuer="https://a.example")]),
        IdentityConfig(certificates=[CertificateConfig(name="a", san="b")]),
    ):
        check_exposure(Config(listen="0.0.0.0:8420", identity=identity))
    with pytest.raises(ConfigError):
        check_exposure(Config(listen="0.0.0.0:8420", identity=IdentityConfig(local_roles=["x"])))
