"""Data types of the contract registry: contracts, provenance, deprecations, runs; and the
factories of its errors."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from interlock.core.catalog.tool_contracts import canonicalize
from interlock.errors import CONFIG, INVALID_PARAMS, TOO_BUSY, InterlockError

ContractProtocol = Literal["json-schema", "protobuf", "openapi", "mcp-tool"]
PROTOCOLS: Final[tuple[str, ...]] = get_args(ContractProtocol)
MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
"""The largest document that the registry stores."""


class Provenance(Struct, frozen=True):
    """The origin of a contract."""

    source: str
    """The origin: a file or an upstream, such as `schemas/proto/agent.proto` or
    `upstream:files`."""
    generator_version: str
    """The program that made the document from its source, such as `interlock 0.8.0`."""
    timestamp: str
    """The time of the publication, as ISO 8601 in UTC."""


class Contract(Struct, frozen=True):
    """One version of one type, ready to be published."""

    name: str
    version: str
    domain: str
    protocol: ContractProtocol
    document: bytes
    """JSON; for Protobuf, the text of the `.proto` file."""
    provenance: Provenance

    @property
    def digest(self) -> str:
        return compute_digest(self.document, self.protocol)


class Deprecation(Struct, frozen=True):
    """The end of support for a major version. Times are ISO 8601 in UTC."""

    name: str
    domain: str
    major: int
    deprecated_at: str
    sunset_at: str
    migration_uri: str

    def is_over(self, now: float) -> bool:
        return parse_timestamp(self.sunset_at) <= now


class StoredContract(Struct, frozen=True, omit_defaults=True):
    """One version of one type, as the registry stores it."""

    name: str
    version: str
    domain: str
    protocol: ContractProtocol
    digest: str
    """The SHA-256, in hex, of the document as canonical JSON; for Protobuf, of its bytes."""
    path: str
    """The path in the repository."""
    provenance: Provenance
    document: bytes = b""
    """Empty in a list."""
    deprecation: Deprecation | None = None

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def schema(self) -> Any:
        """Return the document as a JSON value. A Protobuf document becomes a string."""
        if self.protocol == "protobuf":
            return self.document.decode(errors="replace")
        return msgspec.json.decode(self.document)


class Commit(Struct, frozen=True):
    """One entry of the history of the registry."""

    commit: str
    author: str
    time: str
    reason: str
    """The first line of the commit message."""
    contracts: list[str] = []
    """The contracts that it published: `NAME@VERSION (PROTOCOL)`."""


class PayloadProblem(Struct, frozen=True):
    """One error in a payload."""

    path: str
    """A JSON pointer to the member that is invalid or missing."""
    message: str


class Validation(Struct, frozen=True):
    """The result of validating a payload against a contract."""

    valid: bool
    name: str
    version: str
    protocol: ContractProtocol
    errors: list[PayloadProblem] = []
    """The first errors (`MAX_ERRORS` in `validation.py` is the limit)."""
    deprecation: Deprecation | None = None


class PipelineRun(Struct, frozen=True):
    """The measurements of one run of the schema pipeline."""

    schema_count: int
    drift_violations: int
    generation_duration: float
    """Seconds."""


class Release(Struct, frozen=True):
    """A version of the whole registry: a tag in its repository."""

    version: int
    tag: str
    commit: str
    time: str
    run: PipelineRun


class RegistryMetrics(Struct, frozen=True):
    """Counters of the registry."""

    schema_count: int
    """The number of contract versions that it stores now."""
    drift_violations: int
    generation_duration: float
    """Both values are of the last run of the schema pipeline; 0 before the first run."""
    version: int
    """The number of recorded runs."""
    head: str | None
    """The newest commit."""


def compute_digest(document: bytes, protocol: str) -> str:
    """Return the SHA-256 of a document in its canonical form. Equal digests mean equal
    documents."""
    canonical_bytes = document if protocol == "protobuf" else canonicalize(document)
    return hashlib.sha256(canonical_bytes).hexdigest()


def parse_timestamp(text: str) -> float:
    """Return seconds since 1970 for an ISO 8601 time. A time without a zone is UTC. Raises
    ValueError."""
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()


# -- errors


def registry_error(message: str, **data: Any) -> InterlockError:
    """Return the error for a registry that cannot be used until a person repairs it."""
    return InterlockError(CONFIG, message, data or None)


def busy_error(message: str, **data: Any) -> InterlockError:
    """Return the error for a registry that another process uses now: a retry may succeed."""
    return InterlockError(TOO_BUSY, message, {"retry_after_ms": 1000, **data})


def invalid_request(message: str, **data: Any) -> InterlockError:
    """Return the error for an invalid request."""
    return InterlockError(INVALID_PARAMS, message, data or None)
