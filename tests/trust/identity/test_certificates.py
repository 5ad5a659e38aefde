"""Callers with a client certificate: which of its names selects the caller."""

from __future__ import annotations

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.config.trust import CertificateConfig
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.identity.certificates import Certificates


@pytest.mark.parametrize(
    ("san", "names", "fits"),
    [
        ("edge.example.com", ("edge.example.com",), True),
        ("edge.example.com", ("other.example.com", "EDGE.example.com."), True),
        ("edge.example.com", ("edge.example.com.evil.org",), False),
        ("edge.example.com", ("*.example.com",), False),
        ("*.example.com", ("edge.example.com",), True),
        ("*.example.com", ("a.edge.example.com",), False),
        ("*.example.com", ("example.com",), False),
        ("*.example.com", (".example.com",), False),
        ("*.example.com", ("*.example.com",), False),
        ("*.example.com", ("who@x.example.com",), False),
        ("*.example.com", ("spiffe://x/a.example.com",), False),
        ("*.example.com", ("urn:a.example.com",), False),
        ("*.example.com", ("x/a.example.com",), False),
        ("a.example.com", ("a.example.com/",), False),
        ("who@example.com", ("who@example.com",), True),
        ("who@example.com", ("example.com",), False),
        ("spiffe://td/agent", ("spiffe://td/agent",), True),
        ("spiffe://td/agent", ("spiffe://td/Agent",), False),
        ("spiffe://td/agent", ("spiffe://td/agent/x", "td"), False),
        ("edge.example.com", (), False),
    ],
)
def test_matches_certificate_names(san: str, names: tuple[str, ...], fits: bool) -> None:
    result = Certificates([CertificateConfig(name="edge", san=san)]).find(names)
    assert (result is not None) == fits


def test_first_matching_certificate_decides_permissions() -> None:
    known = Certificates(
        [
            CertificateConfig(
                name="one", san="a.example.com", roles=["r"], scopes=["read"], may=["register"]
            ),
            CertificateConfig(name="many", san="*.example.com"),
        ]
    )
    assert known.find(("b.example.com", "a.example.com")) == Caller(
        "one", can_call=False, kind="certificate", roles=("r",), scopes=("read",)
    )
    assert known.find(("b.example.com",)) == Caller("many", can_register=False, kind="certificate")


def test_bearer_token_overrides_certificate() -> None:
    certificates = Certificates([CertificateConfig(name="edge", san="edge.example.com")])
    authenticate = Authenticator({"s3cret": Caller("token")}, certificates=certificates)
    shown = ("edge.example.com",)
    assert authenticate(Credentials("192.0.2.7", certificate_names=shown)).name == "edge"
    assert authenticate(Credentials("192.0.2.7", "s3cret", certificate_names=shown)).name == "token"
    for credentials in (
        Credentials("192.0.2.7", "wrong", certificate_names=shown),
        Credentials("192.0.2.7", certificate_names=("other.example.com",)),
        Credentials("loopback", certificate_names=("other.example.com",)),
        Credentials("loopback"),
    ):
        with pytest.raises(InterlockError) as error:
            authenticate(credentials)
        assert error.value.failure is UNAUTHENTICATED
    assert authenticate(Credentials("local")).name == "local"
