"""Generated files: how they are written, and how one is known again as generated, and by whom.

A file names its source and the generator, and carries a digest of its own content. So it can be
told apart whether somebody edited it or its source has moved on. When it was made is not in it: it
would differ every time. That is in the report of the run, and in the registry. Pure.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
import yaml

from interlock.contracts.schemas.json_schema import Schema
from interlock.contracts.schemas.reader import SchemaError, read_json, read_yaml
from interlock.core.config.render import PlainDumper

GENERATOR: Final = "interlock-contracts 1"
"""By what a generated file says who made it. The number rises when the same source gives another
text."""
MARK: Final = "x-generated-from"
ArtefactKind = Literal["proto", "json", "openapi", "python"]
_WIDTH: Final = 100
_FLAT: Final = 12
"""So many members stand on one line at most."""
_NOTED: Final = re.compile(
    r"^(?:#|//) Generated from (?P<source>.+) by (?P<generator>\S+ \d+)\.$", re.MULTILINE
)
_DIGEST: Final = re.compile(r"^(?:#|//) sha256:(?P<digest>[0-9a-f]{64})\n", re.MULTILINE)


class ArtefactProvenance(msgspec.Struct, frozen=True):
    """Where a generated file comes from."""

    source: str
    """The canonical file, relative to the folder of schemas."""
    generator: str
    sha256: str
    """Of the content, without this."""


class Artefact(msgspec.Struct, frozen=True):
    """A file that is generated."""

    path: str
    """Relative to the folder of schemas."""
    kind: ArtefactKind
    type: str
    """What it describes: the full name of a type, a package or an API."""
    version: str
    source: str
    text: str
    document: Schema | None = None
    """What is in it, where it is data."""


class ArtefactHeader(msgspec.Struct, frozen=True):
    """What a file on the disk says of itself."""

    provenance: ArtefactProvenance
    edited: bool
    """Whether its content is another than the one that was generated."""


# -- writing


def json_text(document: Schema, source: str) -> str:
    """A JSON Schema, marked as generated."""
    return _laid_out(_marked(document, source), "") + "\n"


def yaml_text(document: Schema, source: str) -> str:
    """An OpenAPI document, marked as generated."""
    marked = _marked(document, source)
    body: str = yaml.dump(
        marked, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, indent=2
    )
    return f"# Generated from {source} by {GENERATOR}.\n# Edit that, not this.\n{body}"


def commented_text(head: str, body: str, source: str, comment: str) -> str:
    """A text with comments, marked as generated. `head`: what has to stand before the mark."""
    lines = (
        f"{comment} Generated from {source} by {GENERATOR}.\n"
        f"{comment} Edit that, not this.\n"
        f"{comment} sha256:{_text_digest(head + body)}\n"
    )
    return f"{head}{lines}{body}"


def _marked(document: Schema, source: str) -> Schema:
    """The same with its provenance, behind what says what it is."""
    mark = {
        "source": source,
        "generator": GENERATOR,
        "sha256": _digest(document),
    }
    first: Schema = {key: document[key] for key in ("$schema", "openapi") if key in document}
    rest = {key: value for key, value in document.items() if key not in first}
    return {**first, MARK: mark, **rest}


def _digest(document: Schema) -> str:
    content = {key: value for key, value in document.items() if key != MARK}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def _text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _laid_out(value: Any, indent: str, before: int = 0) -> str:
    """JSON for people: what is short and flat is one line. `before`: what is on it already."""
    flat = json.dumps(value, ensure_ascii=False)
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not value:
        return flat
    fits = len(indent) + before + len(flat) < _WIDTH
    if fits and not any(isinstance(one, dict | list) for one in inside) and len(value) <= _FLAT:
        return flat
    deeper = f"{indent}  "
    if isinstance(value, list):
        rows = [f"{deeper}{_laid_out(one, deeper)}" for one in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    rows = []
    for key, one in value.items():
        name = json.dumps(key, ensure_ascii=False)
        rows.append(f"{deeper}{name}: {_laid_out(one, deeper, len(name) + 3)}")
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


class _Dumper(PlainDumper):
    """Block style throughout, lists indented, long texts folded as they are."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represented(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


# -- reading again


def known(path: str, text: str) -> ArtefactHeader | None:
    """What a file says of where it comes from. None: it is nobody's but its author's."""
    if path.endswith((".json", ".yaml")):
        return _known_document(path, text)
    noted, digest = _NOTED.search(text), _DIGEST.search(text)
    if noted is None or digest is None:
        return None
    end = digest.end()
    content = text[: noted.start()] + text[end:]
    provenance = ArtefactProvenance(noted["source"], noted["generator"], digest["digest"])
    return ArtefactHeader(provenance, edited=_text_digest(content) != provenance.sha256)


def _known_document(path: str, text: str) -> ArtefactHeader | None:
    if MARK not in text:
        return None
    try:
        document = read_json(path, text) if path.endswith(".json") else read_yaml(path, text)
        provenance = msgspec.convert(document.get(MARK), ArtefactProvenance)
    except (SchemaError, msgspec.ValidationError):
        # Whether it is one of ours cannot be seen any more: it is looked at as anybody's.
        return None
    return ArtefactHeader(provenance, edited=_digest(document) != provenance.sha256)
