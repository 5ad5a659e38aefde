"""The HTTP API for administrators of topics: list topics and participants, change capabilities.

It exists only if the config names administrators; otherwise its paths are unknown. Nobody can
change their own capabilities. The gateway records every change; this module records every rejection
and every read access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

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
from interlock.core.server.http.router import AppRoute, Route
from interlock.errors import INVALID_PARAMS, InterlockError
from interlock.topics.admission import require_administrator
from interlock.topics.join_request import check_unique_headers, get_parameter, parse_query
from interlock.topics.member import CapabilityUpdate
from interlock.topics.overview import describe_topics

if TYPE_CHECKING:
    from interlock.topics.gateway import Gateway

PARTICIPANTS_PATH: Final = "/admin/participants"
TOPICS_PATH: Final = "/admin/topics"
_CAPABILITIES_SUFFIX: Final = "/capabilities"
_METHOD: Final = "topics/admin"
_MAX_BODY_BYTES: Final = 64 * 1024
_MAX_PATTERNS: Final = 200


class CapabilityChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to change capabilities."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class AdminApp:
    """Serves /admin/topics and all paths under /admin/participants."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        on_rejected: Callable[[Call, InterlockError], None],
        audit: Audit,
        challenges: Challenges,
    ) -> None:
        """
        Args:
            on_rejected: records rejected requests.
            audit: records read access.
        """
        self._guard = guard
        self._challenges = challenges
        self._gateway = gateway
        self._authenticate = authenticate
        self._on_rejected = on_rejected
        self._audit = audit

    def routes(self) -> Sequence[Route]:
        return (
            AppRoute(PARTICIPANTS_PATH, self, is_available=self._has_admins),
            AppRoute(TOPICS_PATH, self, is_available=self._has_admins, includes_subpaths=False),
        )

    def _has_admins(self) -> bool:
        return bool(self._gateway.config.admins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        call = create_call(scope, _METHOD)
        try:
            status, body = await self._serve(
                scope, receive, call, path.removeprefix(PARTICIPANTS_PATH)
            )
        except InterlockError as error:
            self._on_rejected(call, error)
            await reject_request(send, error, call, self._challenges)
        else:
            await respond_json(send, status, body, FIELDS)

    async def _serve(
        self, scope: Scope, receive: Receive, call: Call, path: str
    ) -> tuple[int, object]:
        check_unique_headers(scope["headers"])
        check_origin(self._guard, scope)
        parameters = parse_query(scope["query_string"])
        caller = await self._authenticate_admin(call)
        if scope["path"] == TOPICS_PATH:
            return self._list_topics(scope["method"], call, get_parameter(parameters, "topic"))
        id = path.removeprefix("/").removesuffix(_CAPABILITIES_SUFFIX)
        if path and not (path.endswith(_CAPABILITIES_SUFFIX) and id):
            return 404, error_body(
                "not_found",
                f"This path does not exist. Use {PARTICIPANTS_PATH} or "
                f"{PARTICIPANTS_PATH}/ID{_CAPABILITIES_SUFFIX}.",
            )
        if scope["method"] != ("POST" if path else "GET"):
            return 405, error_body("method_not_allowed", "Use POST." if path else "Use GET.")
        topic = get_parameter(parameters, "topic")
        if not path:
            connections = [
                connection
                for connection in self._gateway.list_connections()
                if topic in (None, connection.topic)
            ]
            self._audit.record(call, OK, 0, f"{len(connections)} shown")
            return 200, {"participants": connections}
        change = await read_json(scope, receive, CapabilityChange, _MAX_BODY_BYTES)
        return 200, self._change_capabilities(caller, id, change, topic)

    def _list_topics(self, method: str, call: Call, topic: str | None) -> tuple[int, object]:
        if method != "GET":
            return 405, error_body("method_not_allowed", "Use GET.")
        topics = describe_topics(self._gateway, topic)
        self._audit.record(call, OK, 0, f"{len(topics)} shown")
        return 200, {"topics": topics}

    def _change_capabilities(
        self, caller: Caller, id: str, change: CapabilityChange, topic: str | None
    ) -> CapabilityUpdate:
        if not change.add and not change.remove:
            raise InterlockError(INVALID_PARAMS, "The request needs `add` or `remove`.")
        if len(change.add) + len(change.remove) > _MAX_PATTERNS:
            raise InterlockError(
                INVALID_PARAMS, f"A request can change at most {_MAX_PATTERNS} patterns."
            )
        return self._gateway.change_capabilities(
            id, change.add, change.remove, by=caller.name, topic=topic
        )

    # -- authorization

    async def _authenticate_admin(self, call: Call) -> Caller:
        """Authenticate the caller and check that it is an administrator. Raises InterlockError."""
        call.caller = caller = await resolve_caller(call, self._authenticate)
        require_administrator(self._gateway.config, caller)
        return caller
