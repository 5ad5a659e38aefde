"""The static files of the approval page, and its security headers.

The page has no framework and no inline script, and sends requests only to the node. The files are
package data in the folder of this module.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final, NamedTuple

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
PAGE: Final = "page.html"

SECURITY: Final[tuple[tuple[bytes, bytes], ...]] = (
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"publickey-credentials-get=(self), publickey-credentials-create=(self), camera=(), "
        b"microphone=(), geolocation=()",
    ),
    (b"cache-control", b"no-store"),
)
"""The headers of every response under /approvals."""


class PageFile(NamedTuple):
    """A file of the page, with its content type."""

    content_type: bytes
    body: bytes
    packed: bytes
    """The body, compressed with gzip."""


def page_files() -> dict[str, PageFile]:
    """Read all files of the page. Return them by name."""
    files = {}
    for path in sorted(Path(__file__).parent.iterdir()):
        content_type = _TYPES.get(path.suffix)
        if content_type is not None:
            body = path.read_bytes()
            files[path.name] = PageFile(content_type, body, gzip.compress(body, mtime=0))
    return files
