"""Resource URIs among a call's inputs, held against the folders that a driver declares.

A caller may not lead a server out of its folders by a URI: by `..`, by an encoded one, by a link in
the file system, or by another host. Which inputs are URIs says the contract (`format: uri`,
`uri-reference`, `iri`, `iri-reference`), and whatever begins with `file:` is one in any case. URIs
of other schemes lead to no folder; the network is confined elsewhere.
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
"""Where a path really leads, once every link in it has been followed. It need not exist."""

_FORMATS: Final = frozenset({"uri", "uri-reference", "iri", "iri-reference"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# Also behind the name of a kind of reference, as in `mcp_filesystem:file:///a`.
_FILE: Final = re.compile(r"\s*(?:[a-z][\w+.-]*:)*(?=file:)", re.IGNORECASE)
_STILL_ENCODED: Final = re.compile(r"%(?:2e|2f|5c|25|00)", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[/\\?#]")
_DEEPEST: Final = 32


def check_uris(
    contract: ToolContract,
    inputs: Mapping[str, Any],
    roots: Sequence[str] | None,
    *,
    resolve: UriResolver,
) -> None:
    """Raises InterlockError (policy_violation) for a URI that leads out of `roots`.

    `roots`: the driver's folders, absolute. Empty: it has none, so that no file may be named. None:
    it is not confined to folders, and nothing is checked.
    """
    if roots is None:
        return
    real = [_folder(resolve(root)) for root in roots]
    view = SchemaView.of(contract.inputs)
    for place, text in _uris(inputs, view, "", 0):
        problem = _problem(text, roots, real, resolve)
        if problem:
            raise InterlockError(
                POLICY_VIOLATION,
                f"{contract.id}: the URI in {place!r} {problem}",
                {"contract": contract.id, "field": place},
            )


def _uris(value: Any, view: SchemaView | None, place: str, depth: int) -> Iterator[tuple[str, str]]:
    """Every text in the inputs that is a URI, and where it stands."""
    if isinstance(value, str):
        if _FILE.match(value) is not None or _is_uri(view):
            yield place, value
    elif depth >= _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for name, item in value.items():
            below = view.member(name) if view is not None else None
            yield from _uris(item, below, f"{place}.{name}" if place else str(name), depth + 1)
    elif isinstance(value, list):
        below = view.item() if view is not None else None
        for index, item in enumerate(value):
            yield from _uris(item, below, f"{place}.{index}", depth + 1)


def _is_uri(view: SchemaView | None) -> bool:
    return view is not None and any(layer.get("format") in _FORMATS for layer in view.layers)


def _problem(text: str, roots: Sequence[str], real: list[str], resolve: UriResolver) -> str:
    """Why a URI may not pass. Empty: it may."""
    found = _FILE.match(text)
    file = found is not None
    if not file and _SCHEME.match(text.strip()) is not None:
        return ""
    if text != text.strip() or any(character < " " or character == "\x7f" for character in text):
        return "has blanks or control characters where a URI has none."
    if not file and text.startswith("//"):
        return "names a host, and not only a file."
    decoded = unquote(text, errors="surrogateescape")
    if _STILL_ENCODED.search(decoded) is not None:
        return "is encoded twice."
    if "\0" in decoded or "\\" in decoded:
        return "has a character that no path here has."
    if ".." in _SEPARATORS.split(decoded):
        return "leads upwards (`..`): name the file itself."
    if not roots:
        return "names a file, and the driver declares no folder."
    try:
        split = urlsplit(text if found is None else text[found.end() :])
    except ValueError:
        return "is no URI."
    if file and split.netloc.lower() not in ("", "localhost"):
        return "names another host."
    if file and (split.query or split.fragment):
        return "has a query or a fragment: encode `?` and `#` in the name of a file."
    path = unquote(split.path, errors="surrogateescape")
    if not path.startswith("/"):
        # A reference: it may mean a file in any of the folders, so it must be in each.
        candidates = [f"{_folder(root)}{path}" for root in roots]
    else:
        candidates = [path]
    for candidate in candidates:
        reached = resolve(candidate)
        if not any(_folder(reached).startswith(root) for root in real):
            return "leads out of the folders that the driver declares."
    return ""


def _folder(path: str) -> str:
    return path if path.endswith("/") else path + "/"
