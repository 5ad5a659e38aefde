"""The contract registry over HTTP: which contracts there are, one of them at a version, who
published it, and whether a payload is what it asks for.

    GET  /contracts?name=&domain=&protocol=&version=&source=&generator_version=&since=&until=
    GET  /contracts/NAME?version=2.3.x
    GET  /contracts/NAME/log
    POST /contracts/NAME/validate?version=2.3.x

It is there only where a registry is. Whoever may call may ask; nothing is changed here.
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
    call_of,
    caller_of,
    check_origin,
    turn_away,
    words,
)
from interlock.core.server.http.resource_metadata import Challenges
from interlock.errors import FORBIDDEN, INVALID_REQUEST, InterlockError

BASE: Final = "/contracts"
_VERB: Final = "contracts"
_LOG, _VALIDATE = "/log", "/validate"
_MOST_PARAMETERS: Final = 20
_MOST_ENTRIES: Final = 1000
_WHICH: Final = frozenset({"version", "domain", "protocol"})
_KNOWN: Final = {
    "": _WHICH | {"name", "source", "generator_version", "since", "until"},
    "find": _WHICH,
    _LOG: frozenset({"count"}),
    _VALIDATE: _WHICH | {"part"},
}
"""Which parameters each path understands."""


class DeprecationInfo(Protocol):
    """How long something is still supported."""

    @property
    def deprecated_at(self) -> str: ...

    @property
    def sunset_at(self) -> str: ...

    @property
    def migration_uri(self) -> str: ...


class ContractInfo(Protocol):
    """A contract, as far as the headers of an answer go."""

    @property
    def version(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def deprecation(self) -> DeprecationInfo | None: ...


class ValidationInfo(Protocol):
    """What became of a payload."""

    @property
    def valid(self) -> bool: ...

    @property
    def version(self) -> str: ...

    @property
    def deprecation(self) -> DeprecationInfo | None: ...


class RegistryReader(Protocol):
    """What this asks of a registry. Everything raises InterlockError."""

    @property
    def is_there(self) -> bool: ...

    async def search(self, asked: dict[str, str]) -> dict[str, Any]: ...

    async def find(
        self, name: str, asked: dict[str, str]
    ) -> tuple[dict[str, Any], ContractInfo]: ...

    async def log(self, name: str, most: int) -> Sequence[object]: ...

    async def validate(self, name: str, payload: Any, asked: dict[str, str]) -> ValidationInfo: ...


ApiAnswer = tuple[int, object, DeprecationInfo | None, str]
"""Status, body, how long it is still supported, and what the journal says."""


class ContractsApp:
    """Everything under /contracts."""

    def __init__(
        self,
        registry: RegistryReader,
        *,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        refused: Callable[[Call, InterlockError], None],
        audit: Audit,
        most_bytes: Callable[[], int],
        challenges: Challenges,
    ) -> None:
        """`refused` records who was turned away, `audit` who asked. `most_bytes`: the largest
        payload that is validated."""
        self._guard = guard
        self._challenges = challenges
        self._most_bytes = most_bytes
        self._registry = registry
        self._authenticate = authenticate
        self._refused = refused
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = call_of(scope, _VERB)
        try:
            status, body, ends, told = await self._serve(scope, receive, call)
        except InterlockError as error:
            self._refused(call, error)
            await turn_away(send, error, call, self._challenges, data=error.data)
        else:
            self._audit.record(call, OK, 0, told)
            await respond_json(send, status, body, (*FIELDS, *_fields_of(ends)))

    async def _serve(self, scope: Scope, receive: Receive, call: Call) -> ApiAnswer:
        check_origin(self._guard, scope)
        await self._admit(call)
        name = scope["path"].removeprefix(BASE).removeprefix("/")
        below = next((one for one in (_LOG, _VALIDATE) if name.endswith(one)), "")
        name = name.removesuffix(below) if below else name
        wanted = "POST" if below == _VALIDATE else "GET"
        if scope["method"] not in (wanted, *(("HEAD",) if wanted == "GET" else ())):
            return 405, words("method_not_allowed", f"Use {wanted}."), None, "method not allowed"
        asked = _parameters(scope["query_string"], _KNOWN[below or ("find" if name else "")])
        if not name:
            body = await self._registry.search(asked)
            return 200, body, None, f"{len(body['contracts'])} shown"
        if below == _LOG:
            entries = await self._registry.log(name, _count(asked.get("count")))
            return 200, {"name": name, "log": entries}, None, f"{len(entries)} shown"
        if below == _VALIDATE:
            payload = await read_json(scope, receive, object, self._most_bytes())
            checked = await self._registry.validate(name, payload, asked)
            word = "valid" if checked.valid else "not valid"
            return 200, checked, checked.deprecation, f"{checked.version} {word}"
        shown, found = await self._registry.find(name, asked)
        return 200, shown, found.deprecation, found.version

    # -- who may

    async def _admit(self, call: Call) -> None:
        """Raises InterlockError."""
        call.caller = caller = await caller_of(call, self._authenticate)
        if not caller.can_call:
            raise InterlockError(
                FORBIDDEN, f"The token of {caller.name} is not for calling: `may: [call]` lets it."
            )


def _parameters(query: bytes, known: frozenset[str]) -> dict[str, str]:
    """What stands in the query. Raises InterlockError."""
    try:
        pairs = parse_qsl(query.decode("ascii"), errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise InterlockError(INVALID_REQUEST, "The query of the URL cannot be read.") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InterlockError(INVALID_REQUEST, "A parameter stands twice in the URL: say it once.")
    strange = sorted(found.keys() - known)
    if strange:
        # Not in the words of whoever asked: a token may stand where it does not belong.
        raise InterlockError(
            INVALID_REQUEST,
            f"The URL has a parameter that is not known here: use {', '.join(sorted(known))}.",
        )
    return found


def _count(text: str | None) -> int:
    if text is None:
        return 50
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_ENTRIES):
        raise InterlockError(INVALID_REQUEST, f"`count` is a number from 1 to {_MOST_ENTRIES}.")
    return int(text)


def _fields_of(ends: DeprecationInfo | None) -> Sequence[tuple[bytes, bytes]]:
    """The same for programs that know nothing of contracts: RFC 9745 and RFC 8594."""
    if ends is None:
        return ()
    began = int(datetime.fromisoformat(ends.deprecated_at).timestamp())
    sunset = format_datetime(datetime.fromisoformat(ends.sunset_at), usegmt=True)
    fields = [(b"deprecation", f"@{began}".encode()), (b"sunset", sunset.encode())]
    if ends.migration_uri.isascii() and ends.migration_uri.isprintable():
        link = f'<{ends.migration_uri}>; rel="deprecation"'
        fields.append((b"link", link.encode()))
    return fields
