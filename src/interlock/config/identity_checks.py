"""What must hold between the parts of `identity`, said with file and line before a node starts."""

from __future__ import annotations

from typing import Any, Final

from interlock.config.problems import KeyPath, quoted
from interlock.config.quantities import is_confidential
from interlock.config.reader import NodeReader
from interlock.config.trust import IdentityConfig

_OWN_NAMES: Final = frozenset({"local", "parent"})


def check_identity(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem of `identity`."""
    identity: IdentityConfig | None = values.get("identity")
    if identity is None:
        return
    _check_issuers(reader, identity)
    _check_prefixes(reader, identity)
    _check_certificates(reader, identity, values)
    for index, one in enumerate(identity.introspection):
        if not is_confidential(one.url):
            reader.report(
                ("identity", "introspection", index, "url"),
                "tokens would be sent there over plain http",
                "write https://",
            )


def _check_issuers(reader: NodeReader, identity: IdentityConfig) -> None:
    seen: set[str] = set()
    for index, one in enumerate(identity.issuers):
        place: KeyPath = ("identity", "issuers", index)
        if one.issuer in seen:
            reader.report((*place, "issuer"), "this issuer is there twice", "keep one of them")
        seen.add(one.issuer)
        if one.jwks_url is not None and one.jwks_file is not None:
            reader.report(
                (*place, "jwks_file"), "its keys are in a file and at an address", "keep one"
            )
        elif one.jwks_file is None and not _reachable(one.jwks_url or one.issuer):
            reader.report(
                place,
                "its keys would come over plain http, or from nowhere",
                "give an https jwks_url, or a jwks_file",
            )
        if not one.algorithms:
            reader.report(
                (*place, "algorithms"),
                "no signature would ever be accepted",
                "leave it out, or write [ES256]",
            )


def _check_prefixes(reader: NodeReader, identity: IdentityConfig) -> None:
    seen: set[str] = set()
    groups: dict[str, list[str]] = {
        "issuers": [one.prefix for one in identity.issuers],
        "introspection": [one.prefix for one in identity.introspection],
    }
    for group, prefixes in groups.items():
        for index, prefix in enumerate(prefixes):
            if prefix in seen:
                reader.report(
                    ("identity", group, index),
                    f"the prefix {quoted(prefix)} is another's, so callers could pass for others",
                    "give each its own prefix, such as corp:",
                )
            seen.add(prefix)


def _check_certificates(
    reader: NodeReader, identity: IdentityConfig, values: dict[str, Any]
) -> None:
    tls = values.get("tls")
    if identity.certificates and (tls is None or tls.client_ca is None):
        reader.report(
            ("identity", "certificates"),
            "nobody could check these certificates",
            "name the CA that signed them in tls.client_ca",
        )
    for index, one in enumerate(identity.certificates):
        if one.name in _OWN_NAMES or one.name.startswith("config:"):
            reader.report(
                ("identity", "certificates", index, "name"),
                f"{quoted(one.name)} is what the node itself calls somebody",
                "choose another name",
            )


def _reachable(url: str) -> bool:
    """Whether keys may be asked for there."""
    return url.startswith(("http://", "https://")) and is_confidential(url)
