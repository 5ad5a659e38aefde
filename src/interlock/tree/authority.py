"""Ownership of segments: verification of authorities, and when a proof is required.

An authority in a registration is a claim. It is proven by a token that a trusted key signed for
this aggregator, or by the TLS certificate of the channel. If the config requires a proof, a
subserver without a proof cannot list tools that change something.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import LOCAL, LOOPBACK, OTHER_USER
from interlock.errors import AUTHORITY_REJECTED, InterlockError
from interlock.protocol import mcpax as ax

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

MAX_PROOF_SECONDS: Final = 24 * 3600.0
"""The maximum lifetime of a proof. A proof with a longer lifetime is as weak as a password."""
CLOCK_LEEWAY_SECONDS: Final = 30.0
"""The accepted difference between two clocks."""
_MAX_TOKEN_LENGTH: Final = 16 * 1024
_CURVES_BY_ALGORITHM: Final[dict[str, frozenset[str]]] = {
    "EdDSA": frozenset({"Ed25519", "Ed448"}),
    "Ed25519": frozenset({"Ed25519"}),
    "Ed448": frozenset({"Ed448"}),
    "ES256": frozenset({"P-256"}),
    "ES384": frozenset({"P-384"}),
    "ES512": frozenset({"P-521"}),
    "RS256": frozenset(),
}
"""The accepted algorithms, with the curves of their keys. An empty set: an RSA key."""
_SAME_MACHINE: Final = frozenset({LOCAL, LOOPBACK, OTHER_USER})


def check_authority(
    registration: ax.Registration,
    names: Iterable[str],
    *,
    aggregator_id: str,
    trust: Sequence[Path],
    wall_clock: Callable[[], float],
) -> bool:
    """Return whether the authority of a registration is proven.

    Args:
        names: the DNS names in the certificate of the channel.
        trust: the files with trusted public keys.

    Raises InterlockError for an invalid proof.
    """
    authority, proof = registration.authority, registration.authority_proof
    if proof is None:
        return authority is not None and any(
            _matches_dns_name(name, ax.dns_name(authority)) for name in names
        )
    if authority is None:
        raise _proof_error("the proof has no `authority`")
    if proof.type != "jwt":
        raise _proof_error(f"the proof has the unknown type {proof.type[:40]!r}; send a jwt")
    if len(proof.token) > _MAX_TOKEN_LENGTH:
        raise _proof_error(f"the token has more than {_MAX_TOKEN_LENGTH} characters")
    claims = _signed_claims(proof.token, trust)
    _check_claims(claims, ax.dns_name(authority), aggregator_id, wall_clock())
    return True


def _matches_dns_name(name: str, dns_name: str) -> bool:
    """Return whether a name in a certificate matches a DNS name, by the rules of TLS."""
    name = name.lower().removesuffix(".")
    if name.startswith("*."):
        # A wildcard matches exactly one complete label.
        label, _, rest = dns_name.partition(".")
        return bool(label) and rest == name[2:] and "." in rest
    return name == dns_name


def _signed_claims(token: str, trust: Sequence[Path]) -> dict[str, Any]:
    try:
        from joserfc import jwt
        from joserfc.errors import JoseError, SecurityWarning
        from joserfc.jws import JWSRegistry
    except ImportError:
        raise _proof_error(
            "the parent cannot verify proofs; install joserfc there (pip install "
            "'interlock[oauth]')"
        ) from None
    if not trust:
        raise _proof_error("the parent trusts no keys; add key files to its `subservers.trust`")
    algorithm = _read_algorithm(token)
    if algorithm not in _CURVES_BY_ALGORITHM:
        raise _proof_error(
            f"the token must be signed with one of {', '.join(_CURVES_BY_ALGORITHM)}"
        )
    registry = JWSRegistry(algorithms=[algorithm])
    for key in read_trusted_keys(trust):
        if not _can_verify(key, algorithm):
            continue
        try:
            with warnings.catch_warnings():
                # `EdDSA` is a deprecated but valid name.
                warnings.simplefilter("ignore", SecurityWarning)
                return dict(jwt.decode(token, key, registry=registry).claims)
        except (JoseError, ValueError, TypeError):
            # Another key signed the token.
            continue
    raise _proof_error("the token is not signed by a trusted key")


def _can_verify(key: OKPKey | ECKey | RSAKey, algorithm: str) -> bool:
    from joserfc.jwk import RSAKey

    curves = _CURVES_BY_ALGORITHM[algorithm]
    if isinstance(key, RSAKey):
        return not curves
    return key.curve_name in curves


def _read_algorithm(token: str) -> str:
    from joserfc.errors import JoseError
    from joserfc.jws import extract_compact

    try:
        return str(extract_compact(token.encode()).headers().get("alg"))
    except (JoseError, ValueError):
        raise _proof_error("the token is not a JWT") from None


def read_trusted_keys(files: Sequence[Path]) -> Iterator[OKPKey | ECKey | RSAKey]:
    """Yield every key in these files. Raises InterlockError for an unreadable file."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: dict[str, type[OKPKey] | type[ECKey] | type[RSAKey]] = {
        "OKP": OKPKey,
        "EC": ECKey,
        "RSA": RSAKey,
    }
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            if text.lstrip().startswith("{"):
                document = msgspec.json.decode(text.encode(), type=dict[str, Any])
                for entry in document.get("keys", [document]):
                    if isinstance(entry, dict) and entry.get("kty") in kinds:
                        yield kinds[str(entry["kty"])].import_key(entry)
            else:
                yield from map(_import_pem_key, _split_pem(text))
        except (OSError, ValueError, TypeError, JoseError, msgspec.DecodeError) as error:
            raise _proof_error(
                f"the parent cannot read its key file {path.name} ({type(error).__name__})"
            ) from None


def _split_pem(text: str) -> Iterator[str]:
    blocks = text.split("-----BEGIN ")[1:]
    if not blocks:
        raise ValueError("no key in it")
    for block in blocks:
        yield "-----BEGIN " + block


def _import_pem_key(pem: str) -> OKPKey | ECKey | RSAKey:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    for kind in (OKPKey, ECKey, RSAKey):
        try:
            return kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("not a key of a known kind")


def _check_claims(claims: dict[str, Any], dns_name: str, audience: str, now: float) -> None:
    subject, audiences, expires_at = claims.get("sub"), claims.get("aud"), claims.get("exp")
    if not isinstance(subject, str) or ax.dns_name(subject) != dns_name:
        raise _proof_error("the `sub` of the token is not the authority")
    if audience not in (audiences if isinstance(audiences, list) else [audiences]):
        raise _proof_error("the `aud` of the token is not the id of this aggregator")
    if not isinstance(expires_at, int | float) or not _is_time(expires_at):
        raise _proof_error("the token has no `exp`")
    if expires_at <= now:
        raise _proof_error("the token has expired")
    if expires_at > now + MAX_PROOF_SECONDS + CLOCK_LEEWAY_SECONDS:
        raise _proof_error(f"the token is valid for more than {MAX_PROOF_SECONDS / 3600:g} hours")
    for key in ("nbf", "iat"):
        valid_from = claims.get(key)
        if valid_from is not None and (
            not _is_time(valid_from) or valid_from > now + CLOCK_LEEWAY_SECONDS
        ):
            raise _proof_error(f"the token is not valid yet (`{key}`)")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _proof_error(reason: str) -> InterlockError:
    return InterlockError(AUTHORITY_REJECTED, f"The authority is not proven: {reason}.")


# -- when a proof is required


class _Hints(msgspec.Struct, rename="camel", gc=False):
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None


class _Capability(msgspec.Struct, gc=False):
    mutable: bool | None = None


class _Tool(msgspec.Struct, gc=False):
    name: str = ""
    annotations: _Hints | None = None
    meta: dict[str, Raw] | None = msgspec.field(default=None, name="_meta")


def requires_proof(policy: str, peer: str) -> bool:
    """Return whether a subserver at this address must prove its authority (`subservers.proof`)."""
    return policy == "always" or (policy == "remote" and peer not in _SAME_MACHINE)


def reject_mutable_tools(segment: str, tools: Iterable[Raw]) -> None:
    """Reject the tools of an unproven subserver if one of them can change something.

    Raises InterlockError.
    """
    mutable = find_mutable_tool(tools)
    if mutable is not None:
        raise InterlockError(
            AUTHORITY_REJECTED,
            f"{segment} has not proven its authority and lists a tool that can change something "
            f"({mutable}). Send a proof, or declare all its tools as read-only.",
        )


def find_mutable_tool(tools: Iterable[Raw]) -> str | None:
    """Return the name of the first tool that can change something, or None.

    A tool that is not declared as read-only can change something.
    """
    for raw in tools:
        try:
            tool = msgspec.json.decode(raw, type=_Tool)
            declared = (tool.meta or {}).get(ax.CAPABILITY)
            capability = (
                _Capability()
                if declared is None
                else msgspec.json.decode(declared, type=_Capability)
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "an unreadable definition"
        hints = tool.annotations or _Hints()
        if capability.mutable or hints.read_only_hint is False or hints.destructive_hint:
            return tool.name[:80]
        if capability.mutable is None and not hints.read_only_hint:
            return tool.name[:80]
    return None
