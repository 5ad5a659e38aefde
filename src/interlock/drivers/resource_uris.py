"""Checks of resource URIs in the inputs of a call against the folders that a driver declares.

A caller must not lead a server out of its folders by a URI: by `..`, by an encoded `..`, by a link
in the file system, or by another host. The contract declares which inputs are URIs (`format: uri`,
`uri-reference`, `iri`, `iri-reference`). A text that begins with `file:` is always treated as a
URI. URIs of other schemes do not lead to folders; the network is confined separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from interlock.errors import POLICY_VIOLATION, InterlockError
from interlock.manifests.model import ToolContract
from interlock.manifests.schema_view import SchemaView

UriResolver = Callable[[str], str]
"""Resolves all links of a path. The path does not have to exist."""

_FORMATS: Final = frozenset({"uri", "uri-reference", "iri", "iri-reference"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# Also after the name of a reference kind, as in `mcp_filesystem:file:///a`.
_FILE: Final = re.compile(r"\s*(?:[a-z][\w+.-]*:)*(?=file:)", re.IGNORECASE)
_STILL_ENCODED: Final = re.compile(r"%(?:2e|2f|5c|25|00)", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[/\\?#]")
_MAX_DEPTH: Final = 32


def check_uris(
    contract: ToolContract,
    inputs: Mapping[str, Any],
    roots: Sequence[str] | None,
    *,
    resolve: UriResolver,
) -> None:
    """Raise InterlockError (policy_violation) if a URI in `inputs` leads out of `roots`.

    Args:
        roots: absolute paths of the driver's folders. Empty: the driver has no folders, so no file
            may be named. None: the driver is not limited to folders and nothing is checked.
    """
    if roots is None:
        return
    real = [_folder(resolve(root)) for root in roots]
    view = SchemaView.of(contract.inputs)
    for location, text in _uris(inputs, view, "", 0):
        problem = _problem(text, roots, real, resolve)
        if problem:
            raise InterlockError(
                POLICY_VIOLATION,
                f"{contract.id}: the URI in {location!r} {problem}",
                {"contract": contract.id, "field": location},
            )


def _uris(
    value: Any, view: SchemaView | None, location: str, depth: int
) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of every URI in the inputs."""
    if isinstance(value, str):
        if _FILE.match(value) is not None or _is_uri(view):
            yield location, value
    elif depth >= _MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            inner_view = view.member(name) if view is not None else None
            yield from _uris(
                item, inner_view, f"{location}.{name}" if location else str(name), depth + 1
            )
    elif isinstance(value, list):
        inner_view = view.item() if view is not None else None
        for index, item in enumerate(value):
            yield from _uris(item, inner_view, f"{location}.{index}", depth + 1)


def _is_uri(view: SchemaView | None) -> bool:
    return view is not None and any(layer.get("format") in _FORMATS for layer in view.layers)


def _problem(text: str, roots: Sequence[str], real_roots: list[str], resolve: UriResolver) -> str:
    """Return why a URI is rejected, as the rest of a sentence. Empty: the URI is allowed."""
    prefix = _FILE.match(text)
    is_file = prefix is not None
    if not is_file and _SCHEME.match(text.strip()) is not None:
        return ""
    if text != text.strip() or any(character < " " or character == "\x7f" for character in text):
        return "contains blanks or control characters; percent-encode them."
    if not is_file and text.startswith("//"):
        return "names a host; name only a file."
    decoded = unquote(text, errors="surrogateescape")
    if _STILL_ENCODED.search(decoded) is not None:
        return "is encoded twice; encode it once."
    if "\0" in decoded or "\\" in decoded:
        return "contains a character that is not allowed in paths (NUL or backslash)."
    if ".." in _SEPARATORS.split(decoded):
        return "contains `..`; name the file directly."
    if not roots:
        return "names a file, but the driver declares no folder."
    try:
        split = urlsplit(text if prefix is None else text[prefix.end() :])
    except ValueError:
        return "is not a valid URI."
    if is_file and split.netloc.lower() not in ("", "localhost"):
        return "names another host."
    if is_file and (split.query or split.fragment):
        return "has a query or a fragment; encode `?` and `#` in file names."
    path = unquote(split.path, errors="surrogateescape")
    if not path.startswith("/"):
        # A relative reference can mean a file in any of the folders, so it must be inside each of
        # them.
        candidates = [f"{_folder(root)}{path}" for root in roots]
    else:
        candidates = [path]
    for candidate in candidates:
        reached = resolve(candidate)
        if not any(_folder(reached).startswith(root) for root in real_roots):
            return "leads outside of the folders that the driver declares."
    return ""


def _folder(path: str) -> str:
    return path if path.endswith("/") else path + "/"
