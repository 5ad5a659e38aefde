"""Rules for publishing: the version that a change of a contract requires, given the published
versions."""

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
    MAX_DOCUMENT_BYTES,
    PROTOCOLS,
    Contract,
    ContractProtocol,
    Provenance,
    compute_digest,
    invalid_request,
    parse_timestamp,
)
from interlock.contracts.registry.validation import compile_schema
from interlock.errors import BREAKING_CHANGE, CONTRACT_CONFLICT, PAYLOAD_TOO_LARGE, InterlockError

FIRST_VERSION: Final = "1.0.0"
_MAX_NAME_LENGTH: Final = 255
_MAX_LISTED: Final = 5


class ContractSnapshot(Struct, frozen=True):
    """A contract that another system owns, as it was read. It has no version yet."""

    name: str
    domain: str
    protocol: ContractProtocol
    document: bytes
    provenance: Provenance


class SnapshotResult(Struct, frozen=True):
    """The contract that a snapshot became, and its changes."""

    contract: Contract
    """With its version."""
    is_new: bool
    """False: it equals the newest published version."""
    previous_version: str | None = None
    """The version that it was compared with. None: it is the first."""
    changes: list[SchemaChange] = []
    previous_document: bytes = b""
    """The document that it was compared with."""


def compare_documents(protocol: str, old: bytes, new: bytes) -> list[SchemaChange]:
    """Return the changes between two JSON documents, as far as their protocol can be compared."""
    # The comparison code is large: load it only when there is something to compare.
    if protocol == "mcp-tool":
        from interlock.contracts.diff.tools import diff_tools

        return diff_tools(_decode(old), _decode(new))
    if protocol == "json-schema":
        from interlock.contracts.diff.schemas import diff_schemas

        return diff_schemas(_decode(old), _decode(new), "both")
    return []


def compare_with_previous(
    contract: Contract | ContractSnapshot,
    old: bytes,
    index: ContractIndex,
    batch: Sequence[Contract | ContractSnapshot],
) -> list[SchemaChange]:
    """Return the changes since the previous version.

    Args:
        batch: all contracts that are published together: imports of `.proto` files may name them.
    """
    if contract.protocol != "protobuf":
        return compare_documents(contract.protocol, old, contract.document)
    from interlock.contracts.registry.changes import protobuf_changes

    def published_document(name: str) -> bytes | None:
        versions = index.search(name=name, protocol="protobuf")
        if not versions:
            return None
        newest = max(versions, key=lambda stored: read_version(stored.version))
        return index.document(newest.path)

    def batch_document(name: str) -> bytes | None:
        for other in batch:
            if (other.name, other.protocol) == (name, "protobuf"):
                return other.document
        return published_document(name)

    return protobuf_changes(
        contract.name, old, contract.document, published_document, batch_document
    )


def check_contract(contract: Contract) -> None:
    """Raise InterlockError for a contract that cannot be used."""
    for field, value in (("name", contract.name), ("domain", contract.domain)):
        if not value or len(value) > _MAX_NAME_LENGTH or not value.isprintable():
            raise invalid_request(
                f"Invalid {field} of a contract: {value!r}. Use 1 to 255 printable characters."
            )
    if contract.protocol not in PROTOCOLS:
        raise invalid_request(
            f"Unknown protocol {contract.protocol}. Use one of {', '.join(PROTOCOLS)}."
        )
    read_version(contract.version)
    check_size(contract.name, contract.document)
    try:
        parse_timestamp(contract.provenance.timestamp)
    except ValueError as error:
        raise invalid_request(
            f"Invalid timestamp of {contract.name}: {error}. Use ISO 8601."
        ) from None
    if contract.protocol != "protobuf":
        document = _decode(contract.document)
        if contract.protocol == "json-schema":
            compile_schema(document)
        elif not isinstance(document, dict):
            raise invalid_request(f"The document of {contract.name} must be a JSON object.")


def check_size(name: str, document: bytes) -> None:
    """Raise InterlockError for a document that is too large."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise InterlockError(
            PAYLOAD_TOO_LARGE,
            f"{name} has {len(document)} bytes. The limit is {MAX_DOCUMENT_BYTES} bytes.",
        )


def needs_publication(
    contract: Contract,
    index: ContractIndex,
    earlier_contracts: Sequence[Contract],
    batch: Sequence[Contract],
) -> bool:
    """Return whether a contract is to be published. False: an identical version exists.

    Args:
        earlier_contracts: the contracts of the batch that come before this one.
        batch: all contracts that are published together.

    Raises:
        InterlockError: The version exists with another document, or the change is breaking
            and the major is the same.
    """
    digests = {
        stored.version: stored.digest
        for stored in index.search(
            name=contract.name, domain=contract.domain, protocol=contract.protocol
        )
    }
    documents = {
        other.version: other.document
        for other in earlier_contracts
        if (other.name, other.domain, other.protocol)
        == (contract.name, contract.domain, contract.protocol)
    }
    digests |= {
        version: compute_digest(document, contract.protocol)
        for version, document in documents.items()
    }
    if contract.version in digests:
        if digests[contract.version] == contract.digest:
            return False
        raise InterlockError(
            CONTRACT_CONFLICT,
            f"{contract.name} {contract.version} is published with another document. Published "
            "versions never change. Choose a new version.",
            {
                "name": contract.name,
                "version": contract.version,
                "digest": digests[contract.version],
            },
        )
    requested = read_version(contract.version)
    lower_versions = [version for version in digests if read_version(version) < requested]
    if not lower_versions:
        return True
    previous = max(lower_versions, key=read_version)
    old = documents.get(previous)
    if old is None:
        old = index.find_document(contract.name, contract.domain, contract.protocol, previous)
    if read_version(previous).major == requested.major:
        breaking_changes = breaking(compare_with_previous(contract, old, index, batch))
        if breaking_changes:
            raise _breaking_change_error(contract, previous, breaking_changes)
    return True


def assign_version(
    snapshot: ContractSnapshot, index: ContractIndex, batch: Sequence[ContractSnapshot]
) -> SnapshotResult:
    """Return the contract with the version that its change requires.

    Raises:
        InterlockError: The document is too large, or is not JSON.
    """
    check_size(snapshot.name, snapshot.document)
    versions = index.search(name=snapshot.name, domain=snapshot.domain, protocol=snapshot.protocol)
    digest = compute_digest(snapshot.document, snapshot.protocol)
    if not versions:
        return SnapshotResult(_contract(snapshot, FIRST_VERSION), is_new=True)
    newest = max(versions, key=lambda stored: read_version(stored.version))
    if newest.digest == digest:
        return SnapshotResult(
            _contract(snapshot, newest.version), is_new=False, previous_version=newest.version
        )
    old = index.document(newest.path)
    changes = compare_with_previous(snapshot, old, index, batch)
    version = compatibility.next_version(newest.version, changes)
    return SnapshotResult(_contract(snapshot, version), True, newest.version, changes, old)


def _contract(snapshot: ContractSnapshot, version: str) -> Contract:
    return Contract(
        snapshot.name,
        version,
        snapshot.domain,
        snapshot.protocol,
        snapshot.document,
        snapshot.provenance,
    )


def _breaking_change_error(
    contract: Contract, previous: str, breaking_changes: Sequence[SchemaChange]
) -> InterlockError:
    listed = "; ".join(
        f"{change.reason} {change.path}" for change in breaking_changes[:_MAX_LISTED]
    )
    remainder = (
        f" and {len(breaking_changes) - _MAX_LISTED} more"
        if len(breaking_changes) > _MAX_LISTED
        else ""
    )
    return InterlockError(
        BREAKING_CHANGE,
        f"{BREAKS}: {contract.name} {previous} → {contract.version}: {listed}{remainder}. "
        f"Publish it as {read_version(previous).next_major()}, or undo the changes.",
        {
            "name": contract.name,
            "from": previous,
            "to": contract.version,
            "changes": [
                {"reason": str(change.reason), "path": change.path, "message": change.message}
                for change in breaking_changes
            ],
        },
    )


def _decode(document: bytes) -> Any:
    try:
        return msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"The document is not JSON: {error}.") from None


# -- Protobuf: each version is compiled with its imports, which are other files of the same
# publication or the newest published versions.

ImportLookup = Callable[[str], bytes | None]
"""Returns the text of an imported file. None: the file is not in the registry."""
_IMPORT_STATEMENT: Final = re.compile(
    rb'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE
)
_PROTO_SUFFIX: Final = ".proto"


def protobuf_changes(
    name: str, old: bytes, new: bytes, old_imports: ImportLookup, new_imports: ImportLookup
) -> list[SchemaChange]:
    """Return the changes between two versions of a `.proto` file.

    Raises:
        InterlockError: The new version cannot be compiled, or no compiler is installed.
    """
    from interlock.contracts.diff.protobuf import diff_descriptors
    from interlock.contracts.schemas.protobuf_compiler import descriptor_set
    from interlock.contracts.schemas.reader import SchemaError

    file = name if name.endswith(_PROTO_SUFFIX) else f"{name}{_PROTO_SUFFIX}"
    try:
        new_descriptors = descriptor_set(_collect_imports(file, new, new_imports))
    except SchemaError as error:
        problems = "; ".join(str(problem) for problem in error.problems[:3])
        raise invalid_request(f"{name} cannot be compiled: {problems}") from None
    try:
        old_descriptors = descriptor_set(_collect_imports(file, old, old_imports))
    except SchemaError:
        # Without a comparison, compatibility cannot be claimed.
        message = (
            "The previous version cannot be compiled, so the changes are unknown and count as "
            "breaking."
        )
        return [SchemaChange(ChangeReason.UNDECIDED, "", True, message)]
    return diff_descriptors(old_descriptors, new_descriptors)


def _collect_imports(file: str, document: bytes, find_import: ImportLookup) -> dict[str, str]:
    """Return a file and all files of the registry that it imports, by their import names."""
    files: dict[str, bytes] = {file: document}
    unread = [document]
    while unread:
        for raw in _IMPORT_STATEMENT.findall(unread.pop()):
            name = raw.decode(errors="replace")
            text = None if name in files else find_import(name)
            if text is not None:
                files[name] = text
                unread.append(text)
    return {name: text.decode(errors="replace") for name, text in files.items()}
