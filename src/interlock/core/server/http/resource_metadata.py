"""Where a client gets a token for this node: protected-resource metadata (RFC 9728), and the
challenge that leads there from a refusal (RFC 6750).

Both are for everybody to read, pages of any origin included: there is no secret in them, and a
client that has no token yet needs them to get one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.errors import FORBIDDEN, UNAUTHENTICATED, InterlockError

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
SCOPES: Final = ("read", "write", "admin")
PLAIN_CHALLENGE: Final = b"Bearer"


class ResourceMetadata:
    """What is said of one node."""

    def __init__(self, resource: str, issuers: Sequence[str], *, mcp_path: str) -> None:
        """`resource`: the node's public address, as tokens name it."""
        parts = urlsplit(resource)
        path = "" if parts.path == "/" else parts.path
        self.url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}"
        """Where the document is, for those outside."""
        self.paths = frozenset({WELL_KNOWN, WELL_KNOWN + path, WELL_KNOWN + mcp_path})
        """Where it is served. A proxy in front may have taken a part of the path away."""
        self.document: dict[str, Any] = {
            "resource": resource,
            "authorization_servers": list(issuers),
            "scopes_supported": list(SCOPES),
            "bearer_methods_supported": ["header"],
            "resource_name": "Interlock",
        }

    def challenge(self, error: InterlockError, *, shown: bool) -> bytes | None:
        """The value of `WWW-Authenticate` for a refusal; None when a token would change nothing.

        `shown`: whether the request came with a token.
        """
        where = f'resource_metadata="{self.url}"'
        if error.failure is UNAUTHENTICATED:
            wrong = ', error="invalid_token"' if shown else ""
            return f"Bearer {where}{wrong}".encode()
        missing = missing_scopes(error)
        if missing:
            return (
                f'Bearer error="insufficient_scope", scope="{" ".join(missing)}", {where}'.encode()
            )
        return None


class Challenges:
    """What refused clients are told about tokens. One object for all paths of a node; whoever knows
    the issuers keeps its metadata up to date."""

    def __init__(self) -> None:
        self.metadata: ResourceMetadata | None = None
        """None: there is nowhere to send them."""

    def challenge(self, error: InterlockError, *, shown: bool) -> bytes | None:
        """See `ResourceMetadata.challenge`."""
        if self.metadata is not None:
            return self.metadata.challenge(error, shown=shown)
        return PLAIN_CHALLENGE if error.failure is UNAUTHENTICATED else None


def missing_scopes(error: InterlockError) -> list[str]:
    """The scopes for want of which a call was refused."""
    missing = (error.data or {}).get("missing") if error.failure is FORBIDDEN else None
    if not isinstance(missing, list | tuple):
        return []
    # What stands in a header must not end it.
    return [one for one in missing if isinstance(one, str) and one.isascii() and _plain(one)]


def _plain(scope: str) -> bool:
    return scope.isprintable() and not any(one in scope for one in '" \\')
