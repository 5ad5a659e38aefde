"""A certificate authority for one test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Identity(NamedTuple):
    """The paths of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._file = folder / f"{name}.pem"
        self._file.write_bytes(certificate.public_bytes(Encoding.PEM))

    @property
    def file(self) -> str:
        return str(self._file)

    def issue(self, file: str, *names: str, password: str = "") -> Identity:
        """A certificate for these DNS names, addresses and URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_named(file), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), False)
            .sign(self._key, hashes.SHA256())
        )
        paths = Identity(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        Path(paths.certificate).write_bytes(certificate.public_bytes(Encoding.PEM))
        hidden = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        Path(paths.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
        return paths


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        uri = "://" in name
        return x509.UniformResourceIdentifier(name) if uri else x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
