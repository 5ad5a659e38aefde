"""Protected-resource metadata (RFC 9728), and the challenge in a rejection that refers to it
(RFC 6750): both tell a client where it gets a token for this node.

Both are public and readable by pages of any origin: they contain no secret, and a client without a
token needs them to get one.
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
    """The protected-resource metadata of a node (RFC 9728 §2)."""

    def __init__(self, resource: str, issuers: Sequence[str], *, mcp_path: str) -> None:
        """Create the metadata.

        Args:
            resource: the public address of the node, as in the audience of tokens.
            issuers: the addresses of the authorization servers.
            mcp_path: the path of the MCP endpoint.
        """
        parts = urlsplit(resource)
        path = "" if parts.path == "/" else parts.path
        self.url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}"
        """The public address of the document."""
        self.paths = frozenset({WELL_KNOWN, WELL_KNOWN + path, WELL_KNOWN + mcp_path})
        """The paths that serve the document. A proxy may have removed a part of the path."""
        self.document: dict[str, Any] = {
            "resource": resource,
            "authorization_servers": list(issuers),
            "scopes_supported": list(SCOPES),
            "bearer_methods_supported": ["header"],
            "resource_name": "Interlock",
        }

    def challenge(self, error: InterlockError, *, has_token: bool) -> bytes | None:
        """Return the value of `WWW-Authenticate` for a rejection, or None if no token would help.

        Args:
            error: the rejection.
            has_token: True if the request contained a token.
        """
        metadata = f'resource_metadata="{self.url}"'
        if error.failure is UNAUTHENTICATED:
            token_error = ', error="invalid_token"' if has_token else ""
            return f"Bearer {metadata}{token_error}".encode()
        missing = missing_scopes(error)
        if missing:
            scopes = " ".join(missing)
            return f'Bearer error="insufficient_scope", scope="{scopes}", {metadata}'.encode()
        return None


class Challenges:
    """The challenges for rejected requests. All paths of a node share one object. The component
    that knows the issuers updates its metadata."""

    def __init__(self) -> None:
        self.metadata: ResourceMetadata | None = None
        """None if the node has no issuer."""

    def challenge(self, error: InterlockError, *, has_token: bool) -> bytes | None:
        """Return the value of `WWW-Authenticate`. See `ResourceMetadata.challenge`."""
        if self.metadata is not None:
            return self.metadata.challenge(error, has_token=has_token)
        return PLAIN_CHALLENGE if error.failure is UNAUTHENTICATED else None


def missing_scopes(error: InterlockError) -> list[str]:
    """Return the missing scopes for which a call was rejected."""
    missing = (error.data or {}).get("missing") if error.failure is FORBIDDEN else None
    if not isinstance(missing, list | tuple):
        return []
    # A scope must not end the header or the quoted string that contains it.
    return [scope for scope in missing if isinstance(scope, str) and _is_scope_token(scope)]


def _is_scope_token(scope: str) -> bool:
    """Return whether a scope has only characters of a scope token (RFC 6749 §3.3)."""
    return scope.isascii() and scope.isprintable() and not any(char in scope for char in '" \\')
