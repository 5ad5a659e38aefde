"""Who may own a segment: proofs of an authority, and what has to be proven.

A claim is only that. It counts as proven by a token that a trusted key has signed for this very
aggregator, or by the TLS certificate of the channel. Tools that change something are not shown for
somebody who proved nothing, where the config demands proof.
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

LONGEST_PROOF: Final = 24 * 3600.0
"""A proof that is good for longer is as bad as a password."""
LEEWAY: Final = 30.0
"""By so much two clocks may differ."""
_MOST_TOKEN: Final = 16 * 1024
_CURVES: Final[dict[str, frozenset[str]]] = {
    "EdDSA": frozenset({"Ed25519", "Ed448"}),
    "Ed25519": frozenset({"Ed25519"}),
    "Ed448": frozenset({"Ed448"}),
    "ES256": frozenset({"P-256"}),
    "ES384": frozenset({"P-384"}),
    "ES512": frozenset({"P-521"}),
    "RS256": frozenset(),
}
"""The algorithms that are taken, and the curves of the keys that each needs. None: an RSA key."""
_SAME_MACHINE: Final = frozenset({LOCAL, LOOPBACK, OTHER_USER})


def check_authority(
    registration: ax.Registration,
    names: Iterable[str],
    *,
    aggregator_id: str,
    trust: Sequence[Path],
    wall_clock: Callable[[], float],
) -> bool:
    """Whether the authority of a registration is proven. Raises InterlockError for a wrong proof.

    `names` are those of the channel's certificate, `trust` the files with public keys.
    """
    authority, proof = registration.authority, registration.authority_proof
    if proof is None:
        return authority is not None and any(
            _covers(name, ax.dns_name(authority)) for name in names
        )
    if authority is None:
        raise _rejected("a proof without an `authority` proves nothing")
    if proof.type != "jwt":
        raise _rejected(f"a proof of type {proof.type[:40]!r} is not known here: send a jwt")
    if len(proof.token) > _MOST_TOKEN:
        raise _rejected("the token is too long")
    claims = _signed_claims(proof.token, trust)
    _check_claims(claims, ax.dns_name(authority), aggregator_id, wall_clock())
    return True


def _covers(name: str, wanted: str) -> bool:
    """Whether a name of a certificate stands for this DNS name, as TLS has it."""
    name = name.lower().removesuffix(".")
    if name.startswith("*."):
        # A wildcard stands for one label, and for nothing within one.
        label, _, rest = wanted.partition(".")
        return bool(label) and rest == name[2:] and "." in rest
    return name == wanted


def _signed_claims(token: str, trust: Sequence[Path]) -> dict[str, Any]:
    try:
        from joserfc import jwt
        from joserfc.errors import JoseError, SecurityWarning
        from joserfc.jws import JWSRegistry
    except ImportError:
        raise _rejected(
            "this node cannot check proofs: install joserfc there (pip install 'interlock[oauth]')"
        ) from None
    if not trust:
        raise _rejected("this node trusts no keys: name their files in `subservers.trust`")
    algorithm = _algorithm(token)
    if algorithm not in _CURVES:
        raise _rejected(f"its token must be signed with one of {', '.join(_CURVES)}")
    registry = JWSRegistry(algorithms=[algorithm])
    for key in trusted_keys(trust):
        if not _fits(key, algorithm):
            continue
        try:
            with warnings.catch_warnings():
                # `EdDSA` is the old word for what is good all the same.
                warnings.simplefilter("ignore", SecurityWarning)
                return dict(jwt.decode(token, key, registry=registry).claims)
        except (JoseError, ValueError, TypeError):
            # Not by this key, then.
            continue
    raise _rejected("no trusted key has signed its token")


def _fits(key: OKPKey | ECKey | RSAKey, algorithm: str) -> bool:
    from joserfc.jwk import RSAKey

    curves = _CURVES[algorithm]
    if isinstance(key, RSAKey):
        return not curves
    return key.curve_name in curves


def _algorithm(token: str) -> str:
    from joserfc.errors import JoseError
    from joserfc.jws import extract_compact

    try:
        return str(extract_compact(token.encode()).headers().get("alg"))
    except (JoseError, ValueError):
        raise _rejected("its token is no JWT") from None


def trusted_keys(files: Sequence[Path]) -> Iterator[OKPKey | ECKey | RSAKey]:
    """Every key in these files. Raises InterlockError for one that cannot be read."""
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
                found = msgspec.json.decode(text.encode(), type=dict[str, Any])
                for one in found.get("keys", [found]):
                    if isinstance(one, dict) and one.get("kty") in kinds:
                        yield kinds[str(one["kty"])].import_key(one)
            else:
                yield from map(_pem_key, _pem_blocks(text))
        except (OSError, ValueError, TypeError, JoseError, msgspec.DecodeError) as error:
            raise _rejected(
                f"the aggregator cannot read its key file {path.name} ({type(error).__name__})"
            ) from None


def _pem_blocks(text: str) -> Iterator[str]:
    blocks = text.split("-----BEGIN ")[1:]
    if not blocks:
        raise ValueError("no key in it")
    for block in blocks:
        yield "-----BEGIN " + block


def _pem_key(pem: str) -> OKPKey | ECKey | RSAKey:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    for kind in (OKPKey, ECKey, RSAKey):
        try:
            return kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("not a key of a known kind")


def _check_claims(claims: dict[str, Any], wanted: str, audience: str, now: float) -> None:
    subject, meant, ends = claims.get("sub"), claims.get("aud"), claims.get("exp")
    if not isinstance(subject, str) or ax.dns_name(subject) != wanted:
        raise _rejected("the `sub` of its token is another name")
    if audience not in (meant if isinstance(meant, list) else [meant]):
        raise _rejected("the `aud` of its token is not this aggregator's id")
    if not isinstance(ends, int | float) or not _is_time(ends):
        raise _rejected("its token needs an `exp`")
    if ends <= now:
        raise _rejected("its token has expired")
    if ends > now + LONGEST_PROOF + LEEWAY:
        raise _rejected(f"its token is good for more than {LONGEST_PROOF / 3600:g} hours")
    for key in ("nbf", "iat"):
        begins = claims.get(key)
        if begins is not None and (not _is_time(begins) or begins > now + LEEWAY):
            raise _rejected(f"its token is not good yet (`{key}`)")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rejected(why: str) -> InterlockError:
    return InterlockError(AUTHORITY_REJECTED, f"The authority is not proven: {why}.")


# -- what has to be proven


class _Hints(msgspec.Struct, rename="camel", gc=False):
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None


class _Says(msgspec.Struct, gc=False):
    mutable: bool | None = None


class _Tool(msgspec.Struct, gc=False):
    name: str = ""
    annotations: _Hints | None = None
    meta: dict[str, Raw] | None = msgspec.field(default=None, name="_meta")


def must_prove(policy: str, peer: str) -> bool:
    """Whether somebody from there must prove its authority (`subservers.proof`)."""
    return policy == "always" or (policy == "remote" and peer not in _SAME_MACHINE)


def refuse_mutable(segment: str, tools: Iterable[Raw]) -> None:
    """Raises InterlockError when whoever proved nothing lists a tool that may change something."""
    mutable = first_mutable(tools)
    if mutable is not None:
        raise InterlockError(
            AUTHORITY_REJECTED,
            f"{segment} lists tools that may change something ({mutable}), and has not proven its "
            "authority. Send a proof, or let all its tools say that they only read.",
        )


def first_mutable(tools: Iterable[Raw]) -> str | None:
    """The name of a tool that may change something. One that does not say that it only reads may
    do anything."""
    for raw in tools:
        try:
            tool = msgspec.json.decode(raw, type=_Tool)
            declared = (tool.meta or {}).get(ax.CAPABILITY)
            says = _Says() if declared is None else msgspec.json.decode(declared, type=_Says)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "a tool that cannot be read"
        hints = tool.annotations or _Hints()
        if says.mutable or hints.read_only_hint is False or hints.destructive_hint:
            return tool.name[:80]
        if says.mutable is None and not hints.read_only_hint:
            return tool.name[:80]
    return None
