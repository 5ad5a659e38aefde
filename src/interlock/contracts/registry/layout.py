"""Layout of the repository of a contract registry. A person can read it there:

    registry.json                                    the mark of a registry, and its last pipeline
    run <domain>/<name>/<version>.schema.json            a contract
    <domain>/<name>/<version>.schema.provenance.json its provenance
    <domain>/<name>/deprecations.json                the majors that end, and when

Pure: this module maps contracts to paths and bytes, and touches no files.
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
    invalid_request,
)

MARK_FILE: Final = "registry.json"
FORMAT: Final = 1
_STEMS: Final[Mapping[ContractProtocol, str]] = {
    "json-schema": ".schema",
    "mcp-tool": ".tool",
    "openapi": ".openapi",
    "protobuf": ".proto",
}
_PROVENANCE_SUFFIX: Final = ".provenance.json"
_DEPRECATIONS_FILE: Final = "deprecations.json"
_UNSAFE_CHARACTERS: Final = re.compile(rb"[^A-Za-z0-9._-]|^\.|^-")
_MAX_FOLDER_LENGTH: Final = 160
_CONTRACT_PREFIX: Final = "Contract: "
_README: Final = """\
# A contract registry
All published versions of all contracts, with one commit for each publication. `git log` shows who
published what, when and why. Written by `interlock contracts`; do not edit by hand.

`<domain>/<name>/<version>.schema.json` is a contract. The file `….provenance.json` beside it is its
provenance, and `deprecations.json` lists the deprecated majors and the ends of their support.
"""


class ContractNote(Struct, frozen=True):
    """The provenance file of a contract."""

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
    """The file at the root that marks a repository as a contract registry."""

    interlock: str = "contract registry"
    format: int = FORMAT
    version: int = 0
    """The number of recorded runs of the schema pipeline."""
    time: str = ""
    run: PipelineRun | None = None


# -- paths


def contract_folder(domain: str, name: str) -> str:
    return f"{_folder_name(domain)}/{_folder_name(name)}"


def document_path(domain: str, name: str, version: str, protocol: ContractProtocol) -> str:
    suffix = "" if protocol == "protobuf" else ".json"
    return f"{contract_folder(domain, name)}/{version}{_STEMS[protocol]}{suffix}"


def deprecations_path(domain: str, name: str) -> str:
    return f"{contract_folder(domain, name)}/{_DEPRECATIONS_FILE}"


def note_path(document: str) -> str:
    """Return the path of the provenance file for the path of a contract."""
    return document.removesuffix(".json") + _PROVENANCE_SUFFIX


def find_unit(path: str) -> str | None:
    """Return the path of the file that a path is read with: its contract, or the path itself.

    None: the path is not part of a registry.
    """
    if path == MARK_FILE or path.endswith(f"/{_DEPRECATIONS_FILE}"):
        return path
    if path.count("/") != 2:
        return None
    if path.endswith(_PROVENANCE_SUFFIX):
        stem = path.removesuffix(_PROVENANCE_SUFFIX)
        return stem if stem.endswith(_STEMS["protobuf"]) else f"{stem}.json"
    endings = tuple(f"{stem}.json" for stem in _STEMS.values() if stem != _STEMS["protobuf"])
    return path if path.endswith((*endings, _STEMS["protobuf"])) else None


def is_deprecations(path: str) -> bool:
    return path.endswith(f"/{_DEPRECATIONS_FILE}")


def _folder_name(name: str) -> str:
    """Return a name as a folder name. Unsafe characters become `%` and their hex code; long
    names are cut and get a digest."""
    folder_name = _UNSAFE_CHARACTERS.sub(
        lambda match: b"%%%02X" % match[0][0], name.encode()
    ).decode("ascii")
    if len(folder_name) <= _MAX_FOLDER_LENGTH:
        return folder_name
    return f"{folder_name[:120]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


# -- files


def contract_files(contract: Contract) -> dict[str, bytes]:
    """Return the two files of a contract. Raises InterlockError for a document that is not JSON."""
    document = contract.document
    if contract.protocol != "protobuf":
        document = format_json(document, f"{contract.name} {contract.version}")
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
    return {path: document, note_path(path): _encode_file(note)}


def encode_deprecations(deprecations: Sequence[Deprecation]) -> bytes:
    return _encode_file(sorted(deprecations, key=lambda deprecation: deprecation.major))


def encode_mark(mark: RegistryMark) -> bytes:
    return _encode_file(mark)


def initial_files() -> dict[str, bytes]:
    """Return the files of the first commit of a registry."""
    return {
        MARK_FILE: encode_mark(RegistryMark()),
        # No conversion of line endings: Git stores exactly what was published.
        ".gitattributes": b"* -text\n",
        "README.md": _README.encode(),
    }


def format_json(document: bytes, name: str) -> bytes:
    """Format JSON for people. Raises InterlockError."""
    try:
        msgspec.json.decode(document)
        return msgspec.json.format(document, indent=2) + b"\n"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"The document of {name} is not JSON: {error}.") from None


def _encode_file(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


# -- messages


def format_message(reason: str, published: Sequence[str]) -> str:
    """Return the message of a commit: the reason, and the contracts that it published."""
    subject = " ".join(reason.replace("\0", "").split()) or "Publish"
    contract_lines = "".join(f"{_CONTRACT_PREFIX}{contract}\n" for contract in published)
    return f"{subject}\n\n{contract_lines}" if contract_lines else f"{subject}\n"


def read_message(message: str) -> tuple[str, list[str]]:
    """Split a commit message into the reason and the published contracts."""
    lines = message.splitlines()
    contracts = [
        line.removeprefix(_CONTRACT_PREFIX)
        for line in lines[1:]
        if line.startswith(_CONTRACT_PREFIX)
    ]
    return (lines[0] if lines else ""), contracts
