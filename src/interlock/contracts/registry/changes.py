"""Which version of a contract may carry which change, by what the registry has already."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.contracts.diff import compatibility
from interlock.contracts.diff.changes import ChangeReason, SchemaChange, breaking
from interlock.contracts.diff.compatibility import read_version
from interlock.contracts.diff.verdict import BREAKS
from interlock.contracts.registry.index import ContractIndex
from interlock.contracts.registry.records import (
    MOST_BYTES,
    PROTOCOLS,
    Contract,
    ContractProtocol,
    Provenance,
    digest_of,
    moment_of,
    refused,
)
from interlock.contracts.registry.validation import compiled
from interlock.errors import BREAKING_CHANGE, CONTRACT_CONFLICT, PAYLOAD_TOO_LARGE, InterlockError

FIRST: Final = "1.0.0"
_LONGEST_NAME: Final = 255
_MOST_NAMED: Final = 5


class ContractSnapshot(Struct, frozen=True):
    """A contract that somebody else decides about, as it was seen."""

    name: str
    domain: str
    protocol: ContractProtocol
    document: bytes
    provenance: Provenance


class SnapshotResult(Struct, frozen=True):
    """What became of a snapshot."""

    contract: Contract
    """With the version that it has now."""
    is_new: bool
    """False: it is as it was."""
    before: str | None = None
    """The version that it was compared with. None: it is the first."""
    changes: list[SchemaChange] = []
    old: bytes = b""
    """What it was compared with."""


def changes_between(protocol: str, old: bytes, new: bytes) -> list[SchemaChange]:
    """What changed from one JSON document to another, as far as its protocol can be compared."""
    # To compare takes much code: only who has something to compare waits for it.
    if protocol == "mcp-tool":
        from interlock.contracts.diff.tools import diff_tools

        return diff_tools(_decoded(old), _decoded(new))
    if protocol == "json-schema":
        from interlock.contracts.diff.schemas import diff_schemas

        return diff_schemas(_decoded(old), _decoded(new), "both")
    return []


def changes_of(
    one: Contract | ContractSnapshot,
    old: bytes,
    index: ContractIndex,
    batch: Sequence[Contract | ContractSnapshot],
) -> list[SchemaChange]:
    """What changed since the version before. `batch`: everything that is published together."""
    if one.protocol != "protobuf":
        return changes_between(one.protocol, old, one.document)
    from interlock.contracts.registry.changes import protobuf_changes

    def published(name: str) -> bytes | None:
        found = index.search(name=name, protocol="protobuf")
        if not found:
            return None
        return index.document(max(found, key=lambda one: read_version(one.version)).path)

    def together(name: str) -> bytes | None:
        for other in batch:
            if (other.name, other.protocol) == (name, "protobuf"):
                return other.document
        return published(name)

    return protobuf_changes(one.name, old, one.document, published, together)


def check_contract(contract: Contract) -> None:
    """Raises InterlockError for one that nobody could use."""
    for what, text in (("name", contract.name), ("domain", contract.domain)):
        if not text or len(text) > _LONGEST_NAME or not text.isprintable():
            raise refused(f"{text!r} is no {what} of a contract: write up to 255 characters.")
    if contract.protocol not in PROTOCOLS:
        raise refused(f"{contract.protocol} is none of {', '.join(PROTOCOLS)}.")
    read_version(contract.version)
    check_size(contract.name, contract.document)
    try:
        moment_of(contract.provenance.timestamp)
    except ValueError as error:
        raise refused(f"The timestamp of {contract.name} is no ISO 8601: {error}.") from None
    if contract.protocol != "protobuf":
        document = _decoded(contract.document)
        if contract.protocol == "json-schema":
            compiled(document)
        elif not isinstance(document, dict):
            raise refused(f"The document of {contract.name} is no object.")


def check_size(name: str, document: bytes) -> None:
    """Raises InterlockError for a document that is too large to be kept."""
    if len(document) > MOST_BYTES:
        raise InterlockError(
            PAYLOAD_TOO_LARGE, f"{name} has {len(document)} bytes: at most {MOST_BYTES} are kept."
        )


def is_new(
    contract: Contract,
    index: ContractIndex,
    beside: Sequence[Contract],
    batch: Sequence[Contract],
) -> bool:
    """Whether it is to be published; False when it is there already, exactly so. `beside`: those of
    the `batch` that come before it. Raises InterlockError when it must not be."""
    there = {
        one.version: one.digest
        for one in index.search(
            name=contract.name, domain=contract.domain, protocol=contract.protocol
        )
    }
    documents = {
        one.version: one.document
        for one in beside
        if (one.name, one.domain, one.protocol)
        == (contract.name, contract.domain, contract.protocol)
    }
    there |= {version: digest_of(one, contract.protocol) for version, one in documents.items()}
    if contract.version in there:
        if there[contract.version] == contract.digest:
            return False
        raise InterlockError(
            CONTRACT_CONFLICT,
            f"{contract.name} {contract.version} was published with another document. What is "
            "published never changes: choose a new version.",
            {"name": contract.name, "version": contract.version, "digest": there[contract.version]},
        )
    asked = read_version(contract.version)
    lower = [version for version in there if read_version(version) < asked]
    if not lower:
        return True
    before = max(lower, key=read_version)
    old = documents.get(before)
    if old is None:
        old = index.document_of(contract.name, contract.domain, contract.protocol, before)
    if read_version(before).major == asked.major:
        broken = breaking(changes_of(contract, old, index, batch))
        if broken:
            raise _breaks(contract, before, broken)
    return True


def next_version(
    seen: ContractSnapshot, index: ContractIndex, batch: Sequence[ContractSnapshot]
) -> SnapshotResult:
    """The contract with the version that its change asks for. Raises InterlockError for one that is
    too large, or not JSON."""
    check_size(seen.name, seen.document)
    found = index.search(name=seen.name, domain=seen.domain, protocol=seen.protocol)
    digest = digest_of(seen.document, seen.protocol)
    if not found:
        return SnapshotResult(_contract(seen, FIRST), is_new=True)
    newest = max(found, key=lambda one: read_version(one.version))
    if newest.digest == digest:
        return SnapshotResult(_contract(seen, newest.version), is_new=False, before=newest.version)
    old = index.document(newest.path)
    changes = changes_of(seen, old, index, batch)
    version = compatibility.next_version(newest.version, changes)
    return SnapshotResult(_contract(seen, version), True, newest.version, changes, old)


def _contract(seen: ContractSnapshot, version: str) -> Contract:
    return Contract(seen.name, version, seen.domain, seen.protocol, seen.document, seen.provenance)


def _breaks(contract: Contract, before: str, broken: Sequence[SchemaChange]) -> InterlockError:
    told = "; ".join(f"{one.reason} {one.path}" for one in broken[:_MOST_NAMED])
    more = f" and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
    return InterlockError(
        BREAKING_CHANGE,
        f"{BREAKS}: {contract.name} {before} → {contract.version}: {told}{more}. "
        f"Publish it as {read_version(before).next_major()}, or undo them.",
        {
            "name": contract.name,
            "from": before,
            "to": contract.version,
            "changes": [
                {"reason": str(one.reason), "path": one.path, "message": one.sentence}
                for one in broken
            ],
        },
    )


def _decoded(document: bytes) -> Any:
    try:
        return msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"The document is not JSON: {error}.") from None


# -- What changed between two versions of a `.proto` file, each compiled with what it imports: other
# files of the same publication, else the newest that the registry has of them.

ImportLookup = Callable[[str], bytes | None]
"""Gives the text of a file that is imported. None: it is none of ours."""
_IMPORT: Final = re.compile(rb'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)
_ENDING: Final = ".proto"


def protobuf_changes(
    name: str, old: bytes, new: bytes, old_imports: ImportLookup, new_imports: ImportLookup
) -> list[SchemaChange]:
    """Raises InterlockError for a new one that cannot be compiled, and where there is no
    compiler."""
    from interlock.contracts.diff.protobuf import diff_descriptors
    from interlock.contracts.schemas.protobuf_compiler import descriptor_set
    from interlock.contracts.schemas.reader import SchemaError

    file = name if name.endswith(_ENDING) else f"{name}{_ENDING}"
    try:
        after = descriptor_set(_with_imports(file, new, new_imports))
    except SchemaError as wrong:
        said = "; ".join(str(one) for one in wrong.problems[:3])
        raise refused(f"{name} is no Protobuf that can be compiled: {said}") from None
    try:
        before = descriptor_set(_with_imports(file, old, old_imports))
    except SchemaError:
        # What cannot be compared is not known to be compatible.
        sentence = "What was published before cannot be compiled, so nobody can say what changed."
        return [SchemaChange(ChangeReason.UNDECIDED, "", True, sentence)]
    return diff_descriptors(before, after)


def _with_imports(file: str, document: bytes, imported: ImportLookup) -> dict[str, str]:
    """A file and everything of ours that it imports, by the names by which they do."""
    found: dict[str, bytes] = {file: document}
    waiting = [document]
    while waiting:
        for raw in _IMPORT.findall(waiting.pop()):
            name = raw.decode(errors="replace")
            text = None if name in found else imported(name)
            if text is not None:
                found[name] = text
                waiting.append(text)
    return {name: text.decode(errors="replace") for name, text in found.items()}
