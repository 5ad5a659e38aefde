"""Callers who are known by the client certificate that they show.

The certificate was verified by TLS against the node's `client_ca`; here its names are compared
with those of the config. A wildcard may stand in the config, where whoever runs the node wrote it.
One in a certificate stands for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.core.call import Caller
from interlock.core.config.trust import CertificateConfig

_NO_HOST: Final = frozenset(":/@")


class Certificates:
    """Knows the callers of `identity.certificates`; the first that fits counts."""

    def __init__(self, known: Iterable[CertificateConfig]) -> None:
        self._known = [(one.san, _caller(one)) for one in known]

    @property
    def callers(self) -> list[Caller]:
        """Everybody who may come with a certificate."""
        return [caller for _, caller in self._known]

    def find(self, names: tuple[str, ...]) -> Caller | None:
        """Who shows a certificate with these names."""
        for san, caller in self._known:
            if any(_fits(name, san) for name in names):
                return caller
        return None


def _caller(one: CertificateConfig) -> Caller:
    return Caller(
        one.name,
        can_call="call" in one.may,
        can_register="register" in one.may,
        can_join="join" in one.may,
        can_view_approvals="approve" in one.may,
        kind="certificate",
        roles=tuple(one.roles),
        scopes=None if one.scopes is None else tuple(one.scopes),
    )


def _fits(name: str, san: str) -> bool:
    if "*" in name:
        return False
    if ":" in san:
        # In a URI capitals count.
        return name == san
    name, san = name.lower().removesuffix("."), san.lower().removesuffix(".")
    if "@" not in san and not _NO_HOST.isdisjoint(name):
        # A URI or a mail address that ends like a host is none.
        return False
    if san.startswith("*."):
        # It stands for one label, and for nothing within one.
        label, _, rest = name.partition(".")
        return bool(label) and rest == san[2:]
    return name == san
