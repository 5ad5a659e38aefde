"""What must hold between the parts of `identity`, said with file and line before a node starts.

`identity_problems` is the one place for what would let somebody pass for somebody else: the node
asks it as well, for a config that never was a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from interlock.core.config.problems import KeyPath, quoted
from interlock.core.config.quantities import is_confidential
from interlock.core.config.reader import NodeReader
from interlock.core.config.trust import IdentityConfig

OWN_NAMES: Final = frozenset({"local", "parent"})
"""What the node itself calls somebody: no token, certificate or issuer may name one of these."""


def is_own_name(name: str) -> bool:
    """Whether only the node itself calls somebody so."""
    return name in OWN_NAMES or name.startswith("config:")


class IdentityProblem(NamedTuple):
    """Something about `identity` by which callers could not be told apart."""

    place: KeyPath
    what: str
    hint: str


def identity_problems(identity: IdentityConfig, *, client_ca: bool) -> Iterator[IdentityProblem]:
    """Everything that must hold between its parts, and does not. `client_ca`: whether there is
    somebody by whom certificates are checked."""
    seen: set[str] = set()
    for index, issuer in enumerate(identity.issuers):
        if issuer.issuer in seen:
            place: KeyPath = ("identity", "issuers", index, "issuer")
            yield IdentityProblem(place, "this issuer is there twice", "keep one of them")
        seen.add(issuer.issuer)
    yield from _prefix_problems(identity)
    if identity.certificates and not client_ca:
        yield IdentityProblem(
            ("identity", "certificates"),
            "nobody could check these certificates",
            "name the CA that signed them in tls.client_ca",
        )
    for index, one in enumerate(identity.certificates):
        if is_own_name(one.name):
            yield IdentityProblem(
                ("identity", "certificates", index, "name"),
                f"{quoted(one.name)} is what the node itself calls somebody",
                "choose another name",
            )


def _prefix_problems(identity: IdentityConfig) -> Iterator[IdentityProblem]:
    """No prefix may begin another: behind `""` somebody could be called `corp:x`, who is somebody
    else behind `corp:`."""
    places: list[tuple[KeyPath, str]] = [
        *((("identity", "issuers", i), one.prefix) for i, one in enumerate(identity.issuers)),
        *(
            (("identity", "introspection", i), one.prefix)
            for i, one in enumerate(identity.introspection)
        ),
    ]
    for number, (place, prefix) in enumerate(places):
        for _, other in places[:number]:
            if prefix.startswith(other) or other.startswith(prefix):
                yield IdentityProblem(
                    place,
                    f"the prefixes {quoted(prefix)} and {quoted(other)} begin alike, so callers "
                    "could pass for others",
                    "give each its own prefix, such as corp: and app:",
                )
                break


def check_identity(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem of `identity`."""
    identity: IdentityConfig | None = values.get("identity")
    if identity is None:
        return
    _check_issuers(reader, identity)
    tls = values.get("tls")
    client_ca = tls is not None and tls.client_ca is not None
    for problem in identity_problems(identity, client_ca=client_ca):
        reader.report(*problem)
    for index, one in enumerate(identity.introspection):
        if not is_confidential(one.url):
            reader.report(
                ("identity", "introspection", index, "url"),
                "tokens would be sent there over plain http",
                "write https://",
            )


def _check_issuers(reader: NodeReader, identity: IdentityConfig) -> None:
    for index, one in enumerate(identity.issuers):
        place: KeyPath = ("identity", "issuers", index)
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


def _reachable(url: str) -> bool:
    """Whether keys may be asked for there."""
    return url.startswith(("http://", "https://")) and is_confidential(url)
