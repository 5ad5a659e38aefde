"""A certificate authority for one run, and certificates for the addresses that it is run on."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs what is asked for, and writes it into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("benchmark authority")
        signed = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "authority.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, addresses: list[str]) -> tuple[Path, Path]:
        """The files of a certificate for these addresses and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        proven = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        signed = (
            _builder(_named(name), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName(proven), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key_file.chmod(0o600)
        return certificate, key_file


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
