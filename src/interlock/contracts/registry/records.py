"""What the contract registry keeps: contracts with where they came from, how long a major is still
supported, and what went wrong when it could not be kept or found. Data only."""

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
MOST_BYTES: Final = 16 * 1024 * 1024
"""No document of a contract is larger than this."""


class Provenance(Struct, frozen=True):
    """Where a contract came from."""

    source: str
    """A file, or who said it: `schemas/proto/agent.proto`, `upstream:files`."""
    generator_version: str
    """What made it of its source, such as `interlock 0.8.0`."""
    timestamp: str
    """When, as ISO 8601 in UTC."""


class Contract(Struct, frozen=True):
    """One version of one type, as it is to be published."""

    name: str
    version: str
    domain: str
    protocol: ContractProtocol
    document: bytes
    """JSON; of Protobuf, its own language."""
    provenance: Provenance

    @property
    def digest(self) -> str:
        return digest_of(self.document, self.protocol)


class Deprecation(Struct, frozen=True):
    """A major that will not be supported for ever. Moments are ISO 8601 in UTC."""

    name: str
    domain: str
    major: int
    deprecated_at: str
    sunset_at: str
    migration_uri: str

    def is_over(self, now: float) -> bool:
        return moment_of(self.sunset_at) <= now


class StoredContract(Struct, frozen=True, omit_defaults=True):
    """One version of one type, as the registry has it."""

    name: str
    version: str
    domain: str
    protocol: ContractProtocol
    digest: str
    """The SHA-256, in hex, of the document as canonical JSON; of Protobuf, of its bytes."""
    path: str
    """Where in the repository."""
    provenance: Provenance
    document: bytes = b""
    """Empty in a list."""
    deprecation: Deprecation | None = None

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def schema(self) -> Any:
        """The document for somebody who reads JSON: Protobuf is text in it."""
        if self.protocol == "protobuf":
            return self.document.decode(errors="replace")
        return msgspec.json.decode(self.document)


class Commit(Struct, frozen=True):
    """One entry of the registry's history."""

    commit: str
    author: str
    time: str
    reason: str
    """The first line of its message."""
    contracts: list[str] = []
    """What it published: `NAME@VERSION (PROTOCOL)`."""


class PayloadProblem(Struct, frozen=True):
    """What is wrong with a payload."""

    path: str
    """A JSON pointer to the member that is wrong, or missing."""
    message: str


class Validation(Struct, frozen=True):
    """Whether a payload is what a contract asks for."""

    valid: bool
    name: str
    version: str
    protocol: ContractProtocol
    errors: list[PayloadProblem] = []
    """The first of them."""
    deprecation: Deprecation | None = None


class PipelineRun(Struct, frozen=True):
    """What a run of the schema pipeline measured."""

    schema_count: int
    drift_violations: int
    generation_duration: float
    """Seconds."""


class Release(Struct, frozen=True):
    """A version of the registry as a whole: a tag in its repository."""

    version: int
    tag: str
    commit: str
    time: str
    run: PipelineRun


class RegistryMetrics(Struct, frozen=True):
    """How the registry fares, in numbers."""

    schema_count: int
    """How many versions of contracts it has now."""
    drift_violations: int
    generation_duration: float
    """Both of the last run of the schema pipeline; 0 before the first."""
    version: int
    """How many runs were recorded."""
    head: str | None
    """The newest commit."""


def digest_of(document: bytes, protocol: str) -> str:
    """By which two documents are the same."""
    plain = document if protocol == "protobuf" else canonicalize(document)
    return hashlib.sha256(plain).hexdigest()


def moment_of(text: str) -> float:
    """ISO 8601 on the wall clock; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


# -- what goes wrong


def unusable(sentence: str, **data: Any) -> InterlockError:
    """The registry cannot be used as it is: somebody has to do something."""
    return InterlockError(CONFIG, sentence, data or None)


def locked(sentence: str, **data: Any) -> InterlockError:
    """Somebody else has it now: it may well work later."""
    return InterlockError(TOO_BUSY, sentence, {"retry_after_ms": 1000, **data})


def refused(sentence: str, **data: Any) -> InterlockError:
    """What was asked for makes no sense."""
    return InterlockError(INVALID_PARAMS, sentence, data or None)
