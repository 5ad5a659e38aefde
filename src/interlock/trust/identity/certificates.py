"""Callers with client certificates.

TLS verifies a certificate against the node's `client_ca`. This module compares its names with those
of the config. A wildcard in the config counts, because the administrator wrote it. A wildcard in a
certificate matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.core.call import Caller
from interlock.core.config.trust import CertificateConfig

_NO_HOST: Final = frozenset(":/@")


class Certificates:
    """Finds the callers of `identity.certificates`. The first match counts."""

    def __init__(self, configs: Iterable[CertificateConfig]) -> None:
        self._callers = [(config.san, _create_caller(config)) for config in configs]

    @property
    def callers(self) -> list[Caller]:
        """All callers with a certificate."""
        return [caller for _, caller in self._callers]

    def find(self, names: tuple[str, ...]) -> Caller | None:
        """Return the caller of a certificate with these names. None: unknown."""
        for san, caller in self._callers:
            if any(_matches(name, san) for name in names):
                return caller
        return None


def _create_caller(config: CertificateConfig) -> Caller:
    return Caller(
        config.name,
        can_call="call" in config.may,
        can_register="register" in config.may,
        can_join="join" in config.may,
        can_view_approvals="approve" in config.may,
        kind="certificate",
        roles=tuple(config.roles),
        scopes=None if config.scopes is None else tuple(config.scopes),
    )


def _matches(name: str, san: str) -> bool:
    if "*" in name:
        return False
    if ":" in san:
        # URIs are case-sensitive.
        return name == san
    name, san = name.lower().removesuffix("."), san.lower().removesuffix(".")
    if "@" not in san and not _NO_HOST.isdisjoint(name):
        # A URI or mail address that ends like a host name is no host name.
        return False
    if san.startswith("*."):
        # The wildcard stands for exactly one label (RFC 9525 §6.3).
        label, _, rest = name.partition(".")
        return bool(label) and rest == san[2:]
    return name == san
