"""The HTTP API of the contract registry.

    GET  /contracts?name=&domain=&protocol=&version=&source=&generator_version=&since=&until=
    GET  /contracts/NAME?version=2.3.x
    GET  /contracts/NAME/log
    POST /contracts/NAME/validate?version=2.3.x

The API exists only where a registry is configured. Every caller that may call tools may use it. It
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from email.utils import format_datetime
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from interlock.core.call import Call, Caller, Credentials
from interlock.core.journal.audit import OK, Audit
from interlock.core.server.http.asgi import Receive, Scope, Send, read_json, respond_json
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.plain_requests import (
    FIELDS,
    check_origin,
    create_call,
    error_body,
    reject_request,
    resolve_caller,
)
from interlock.core.server.http.resource_metadata import Challenges
from interlock.errors import FORBIDDEN, INVALID_REQUEST, InterlockError

BASE: Final = "/contracts"
_METHOD: Final = "contracts"
_LOG, _VALIDATE = "/log", "/validate"
_MAX_PARAMETERS: Final = 20
_MAX_LOG_ENTRIES: Final = 1000
_SELECTORS: Final = frozenset({"version", "domain", "protocol"})
_PARAMETERS_OF_PATH: Final = {
    "": _SELECTORS | {"name", "source", "generator_version", "since", "until"},
    "find": _SELECTORS,
    _LOG: frozenset({"count"}),
    _VALIDATE: _SELECTORS | {"part"},
}
"""The query parameters of each path."""


class DeprecationInfo(Protocol):
    """The end of support for a contract."""

    @property
    def deprecated_at(self) -> str: ...

    @property
    def sunset_at(self) -> str: ...

    @property
    def migration_uri(self) -> str: ...


class ContractInfo(Protocol):
    """A contract, with the data that response headers need."""

    @property
    def version(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def deprecation(self) -> DeprecationInfo | None: ...


class ValidationInfo(Protocol):
    """The result of validating a payload."""

    @property
    def valid(self) -> bool: ...

    @property
    def version(self) -> str: ...

    @property
    def deprecation(self) -> DeprecationInfo | None: ...


class RegistryReader(Protocol):
    """Access to the registry. All methods raise InterlockError."""

    @property
    def is_available(self) -> bool: ...

    async def search(self, query: dict[str, str]) -> dict[str, Any]: ...

    async def find(
        self, name: str, query: dict[str, str]
    ) -> tuple[dict[str, Any], ContractInfo]: ...

    async def log(self, name: str, limit: int) -> Sequence[object]: ...

    async def validate(self, name: str, payload: Any, query: dict[str, str]) -> ValidationInfo: ...


ApiResponse = tuple[int, object, DeprecationInfo | None, str]
"""Status, body, end of support, and the detail for the journal."""


class ContractsApp:
    """The application for all paths under /contracts."""

    def __init__(
        self,
        registry: RegistryReader,
        *,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        on_rejection: Callable[[Call, InterlockError], None],
        audit: Audit,
        max_payload_bytes: Callable[[], int],
        challenges: Challenges,
    ) -> None:
        """Create the application.

        Args:
            on_rejection: records a rejected request.
            audit: records an accepted request.
            max_payload_bytes: returns the size limit of a payload to validate.
        """
        self._guard = guard
        self._challenges = challenges
        self._max_payload_bytes = max_payload_bytes
        self._registry = registry
        self._authenticate = authenticate
        self._on_rejection = on_rejection
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = create_call(scope, _METHOD)
        try:
            status, body, deprecation, detail = await self._serve(scope, receive, call)
        except InterlockError as error:
            self._on_rejection(call, error)
            await reject_request(send, error, call, self._challenges, data=error.data)
        else:
            self._audit.record(call, OK, 0, detail)
            await respond_json(send, status, body, (*FIELDS, *_deprecation_fields(deprecation)))

    async def _serve(self, scope: Scope, receive: Receive, call: Call) -> ApiResponse:
        check_origin(self._guard, scope)
        await self._admit(call)
        name = scope["path"].removeprefix(BASE).removeprefix("/")
        action = next((suffix for suffix in (_LOG, _VALIDATE) if name.endswith(suffix)), "")
        name = name.removesuffix(action) if action else name
        required_method = "POST" if action == _VALIDATE else "GET"
        if scope["method"] not in (
            required_method,
            *(("HEAD",) if required_method == "GET" else ()),
        ):
            return (
                405,
                error_body("method_not_allowed", f"Use {required_method}."),
                None,
                "method not allowed",
            )
        query = _parameters(
            scope["query_string"], _PARAMETERS_OF_PATH[action or ("find" if name else "")]
        )
        if not name:
            body = await self._registry.search(query)
            return 200, body, None, f"{len(body['contracts'])} shown"
        if action == _LOG:
            entries = await self._registry.log(name, _count(query.get("count")))
            return 200, {"name": name, "log": entries}, None, f"{len(entries)} shown"
        if action == _VALIDATE:
            payload = await read_json(scope, receive, object, self._max_payload_bytes())
            validation = await self._registry.validate(name, payload, query)
            outcome = "valid" if validation.valid else "not valid"
            return 200, validation, validation.deprecation, f"{validation.version} {outcome}"
        body, contract = await self._registry.find(name, query)
        return 200, body, contract.deprecation, contract.version

    # -- authorization

    async def _admit(self, call: Call) -> None:
        """Authenticate the caller. Raises InterlockError if it may not call tools."""
        call.caller = caller = await resolve_caller(call, self._authenticate)
        if not caller.can_call:
            raise InterlockError(
                FORBIDDEN,
                f"The token of {caller.name} does not allow calls. Add `may: [call]` to the token.",
            )


def _parameters(query: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """Parse the query. Raises InterlockError."""
    try:
        pairs = parse_qsl(query.decode("ascii"), errors="strict", max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise InterlockError(INVALID_REQUEST, "The query of the URL is invalid.") from None
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise InterlockError(INVALID_REQUEST, "A parameter occurs twice in the URL. Send it once.")
    unknown = sorted(parameters.keys() - allowed)
    if unknown:
        # Do not repeat the caller's text: a misplaced token may be in it.
        raise InterlockError(
            INVALID_REQUEST,
            f"The URL has an unknown parameter. Allowed: {', '.join(sorted(allowed))}.",
        )
    return parameters


def _count(text: str | None) -> int:
    if text is None:
        return 50
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MAX_LOG_ENTRIES):
        raise InterlockError(
            INVALID_REQUEST, f"`count` must be a number from 1 to {_MAX_LOG_ENTRIES}."
        )
    return int(text)


def _deprecation_fields(deprecation: DeprecationInfo | None) -> Sequence[tuple[bytes, bytes]]:
    """Return the deprecation as header fields for clients that know nothing of contracts (RFC
    9745, RFC 8594)."""
    if deprecation is None:
        return ()
    deprecated_at = int(datetime.fromisoformat(deprecation.deprecated_at).timestamp())
    sunset = format_datetime(datetime.fromisoformat(deprecation.sunset_at), usegmt=True)
    fields = [(b"deprecation", f"@{deprecated_at}".encode()), (b"sunset", sunset.encode())]
    if deprecation.migration_uri.isascii() and deprecation.migration_uri.isprintable():
        link = f'<{deprecation.migration_uri}>; rel="deprecation"'
        fields.append((b"link", link.encode()))
    return fields
