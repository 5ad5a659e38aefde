"""How the contract registry lies in its repository, so that a person can read it there:

    registry.json                                    what this is, and the last run of the pipeline
    <domain>/<name>/<version>.schema.json            a contract
    <domain>/<name>/<version>.schema.provenance.json where it came from
    <domain>/<name>/deprecations.json                which majors end, and when

Pure: paths and bytes, no files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from interlock.contracts.registry.records import (
    Contract,
    ContractProtocol,
    Deprecation,
    PipelineRun,
    Provenance,
    refused,
)

MARK: Final = "registry.json"
FORMAT: Final = 1
_STEMS: Final[Mapping[ContractProtocol, str]] = {
    "json-schema": ".schema",
    "mcp-tool": ".tool",
    "openapi": ".openapi",
    "protobuf": ".proto",
}
_PROVENANCE: Final = ".provenance.json"
_DEPRECATIONS: Final = "deprecations.json"
_UNFIT: Final = re.compile(rb"[^A-Za-z0-9._-]|^\.|^-")
_LONGEST: Final = 160
_CONTRACT: Final = "Contract: "
_README: Final = """\
# A contract registry
Every version of every contract that was published here, one commit for each publication. `git log`
says who published what, when and why. Written by `interlock contracts`; do not edit by hand.

`<domain>/<name>/<version>.schema.json` is a contract, `….provenance.json` beside it says where it
came from, `deprecations.json` which majors end and when.
"""


class ContractNote(Struct, frozen=True):
    """What stands beside a contract."""

    name: str
    version: str
    domain: str
    protocol: ContractProtocol
    digest: str
    source: str
    generator_version: str
    timestamp: str

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.source, self.generator_version, self.timestamp)


class RegistryMark(Struct, frozen=True):
    """What stands at the root, by which a registry is known."""

    interlock: str = "contract registry"
    format: int = FORMAT
    version: int = 0
    """How many runs of the schema pipeline were recorded."""
    time: str = ""
    run: PipelineRun | None = None


# -- paths


def folder_of(domain: str, name: str) -> str:
    return f"{_fit(domain)}/{_fit(name)}"


def document_path(domain: str, name: str, version: str, protocol: ContractProtocol) -> str:
    ending = "" if protocol == "protobuf" else ".json"
    return f"{folder_of(domain, name)}/{version}{_STEMS[protocol]}{ending}"


def deprecations_path(domain: str, name: str) -> str:
    return f"{folder_of(domain, name)}/{_DEPRECATIONS}"


def note_path(document: str) -> str:
    """Where the provenance of the contract at a path is."""
    return document.removesuffix(".json") + _PROVENANCE


def unit_of(path: str) -> str | None:
    """By which path a file is read: that of its contract, or its own. None: it is none of ours."""
    if path == MARK or path.endswith(f"/{_DEPRECATIONS}"):
        return path
    if path.count("/") != 2:
        return None
    if path.endswith(_PROVENANCE):
        stem = path.removesuffix(_PROVENANCE)
        return stem if stem.endswith(_STEMS["protobuf"]) else f"{stem}.json"
    endings = tuple(f"{stem}.json" for stem in _STEMS.values() if stem != _STEMS["protobuf"])
    return path if path.endswith((*endings, _STEMS["protobuf"])) else None


def is_deprecations(path: str) -> bool:
    return path.endswith(f"/{_DEPRECATIONS}")


def _fit(name: str) -> str:
    """A name as a folder: what a path or Git could misunderstand is written as its number."""
    fit = _UNFIT.sub(lambda found: b"%%%02X" % found[0][0], name.encode()).decode("ascii")
    if len(fit) <= _LONGEST:
        return fit
    return f"{fit[:120]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


# -- files


def files_of(contract: Contract) -> dict[str, bytes]:
    """The two files of a contract. Raises InterlockError for a document that is not JSON."""
    document = contract.document
    if contract.protocol != "protobuf":
        document = pretty(document, f"{contract.name} {contract.version}")
    path = document_path(contract.domain, contract.name, contract.version, contract.protocol)
    provenance = contract.provenance
    note = ContractNote(
        contract.name,
        contract.version,
        contract.domain,
        contract.protocol,
        contract.digest,
        provenance.source,
        provenance.generator_version,
        provenance.timestamp,
    )
    return {path: document, note_path(path): _written(note)}


def deprecations_file(deprecations: Sequence[Deprecation]) -> bytes:
    return _written(sorted(deprecations, key=lambda one: one.major))


def mark_file(mark: RegistryMark) -> bytes:
    return _written(mark)


def first_files() -> dict[str, bytes]:
    """What a new registry begins with."""
    return {
        MARK: mark_file(RegistryMark()),
        # Nobody's line endings: what is committed is what was published.
        ".gitattributes": b"* -text\n",
        "README.md": _README.encode(),
    }


def pretty(document: bytes, what: str) -> bytes:
    """JSON as a person reads it. Raises InterlockError."""
    try:
        msgspec.json.decode(document)
        return msgspec.json.format(document, indent=2) + b"\n"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"The document of {what} is not JSON: {error}.") from None


def _written(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


# -- messages


def message_of(reason: str, published: Sequence[str]) -> str:
    """The message of a commit: why, and what it published."""
    lines = " ".join(reason.replace("\0", "").split()) or "Publish"
    told = "".join(f"{_CONTRACT}{one}\n" for one in published)
    return f"{lines}\n\n{told}" if told else f"{lines}\n"


def read_message(message: str) -> tuple[str, list[str]]:
    """The same, read again."""
    lines = message.splitlines()
    told = [line.removeprefix(_CONTRACT) for line in lines[1:] if line.startswith(_CONTRACT)]
    return (lines[0] if lines else ""), told
