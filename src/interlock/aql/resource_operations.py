"""Operations for the resources and prompts of upstreams.

Each makes a separate request on behalf of the caller. The request passes the pipeline like a
request of the plain view, so the policy hides the same resources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.aql.language import errors
from interlock.aql.language.collections import CollectionSchema
from interlock.aql.list_requests import LISTING, ListResponder, parameter
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.core.call import Call, UpstreamResponseError
from interlock.core.ports import CallHost
from interlock.errors import (
    METHOD_NOT_FOUND,
    UNKNOWN_PROMPT,
    UNKNOWN_RESOURCE,
    UPSTREAM_PROTOCOL,
    Failure,
    InterlockError,
)
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import (
    INPUT_REQUIRED,
    PROMPTS_GET,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_READ,
    TEMPLATES_LIST,
)

RESOURCES: Final = CollectionSchema(
    "resources", id="uri", text=("uri", "name", "title", "description")
)
PROMPTS: Final = CollectionSchema("prompts", id="name", text=("name", "title", "description"))
_PROMPT_PRESETS: Final = {"standard": ("name", "title", "description", "arguments")}
"""The standard preset includes arguments: without them a prompt cannot be requested."""
MAX_ENTRIES: Final = 100_000
"""Maximum number of list entries that are read."""
_PROTOCOL_MEMBERS: Final = frozenset({"resultType", "ttlMs", "cacheScope", "_meta"})
"""Members of a result that belong to the protocol."""


class ResourceReader:
    """Requests resources and prompts of upstreams."""

    def __init__(self, host: CallHost) -> None:
        self._host = host

    async def resources(self, parent: Call) -> list[dict[str, Any]]:
        """Return resources and resource templates."""
        resources = await self._list(parent, RESOURCES_LIST, "resources")
        templates = await self._list(parent, TEMPLATES_LIST, "resourceTemplates")
        return [
            *({"kind": "resource", **resource} for resource in resources),
            *(
                {
                    "kind": "template",
                    "uri": template.get("uriTemplate"),
                    **_without(template, "uriTemplate"),
                }
                for template in templates
            ),
        ]

    async def read(self, parent: Call, uri: str) -> dict[str, Any]:
        """Read a resource. Raises InterlockError."""
        try:
            return await self._send_request(parent, RESOURCES_READ, uri)
        except InterlockError as error:
            if _is_missing(error, UNKNOWN_RESOURCE):
                raise errors.unknown_resource("resource", uri) from error
            raise

    async def prompts(self, parent: Call) -> list[dict[str, Any]]:
        return await self._list(parent, PROMPTS_LIST, "prompts")

    async def prompt(self, parent: Call, name: str, arguments: Any) -> dict[str, Any]:
        """Get a prompt. Raises InterlockError."""
        encoded_arguments = encode_value(arguments or {})
        try:
            return await self._send_request(
                parent, PROMPTS_GET, name, arguments=Raw(encoded_arguments)
            )
        except InterlockError as error:
            if _is_missing(error, UNKNOWN_PROMPT):
                raise errors.unknown_resource("prompt", name) from error
            raise

    async def _list(self, parent: Call, method: str, member: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(entries) < MAX_ENTRIES:
            try:
                page = await self._send_request(parent, method, cursor=cursor)
            except InterlockError as error:
                if error.failure is METHOD_NOT_FOUND:
                    # No server has any.
                    return entries
                raise
            entries += page.get(member, ())
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return entries

    async def _send_request(
        self, parent: Call, method: str, name: str = "", **fields: Any
    ) -> dict[str, Any]:
        call = Call(
            method,
            parent.server,
            parent.credentials,
            parent.client,
            name,
            parent.session_owner,
            meta=parent.meta,
            session=parent.session,
            **fields,
        )
        outcome = await self._host.run(call)
        result = decode_value(outcome.result)
        if not isinstance(result, dict):
            raise InterlockError(UPSTREAM_PROTOCOL, "The server's result is not an object.")
        if result.get("resultType") == INPUT_REQUIRED:
            raise errors.AqlError(
                "CONFLICT_INVALID_STATE",
                "The server requests input first. Request it in the plain view.",
                {"reason": INPUT_REQUIRED},
            )
        return {key: value for key, value in result.items() if key not in _PROTOCOL_MEMBERS}


def _is_missing(error: InterlockError, missing_failure: Failure) -> bool:
    """Return whether an error means that the catalog or the server does not know the item."""
    if isinstance(error, UpstreamResponseError):
        return error.code == UNKNOWN_RESOURCE.code
    return error.failure in (missing_failure, METHOD_NOT_FOUND)


def _without(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != name}


def _require_call(request: AqlRequest) -> Call:
    assert request.call is not None, "built-in operations run for a call"
    return request.call


def resource_operations(
    reader: ResourceReader, listing: Callable[[], ListResponder]
) -> list[BuiltinOperation]:
    """Return the operations about resources and prompts.

    Args:
        listing: returns the responder for lists with the current config.
    """

    async def list_resources(request: AqlRequest) -> BuiltinResponse:
        items = await reader.resources(_require_call(request))
        return listing()(items, request.params or {}, RESOURCES)

    async def get_resource(request: AqlRequest) -> Any:
        return await reader.read(_require_call(request), str((request.params or {})["uri"]))

    async def list_prompts(request: AqlRequest) -> BuiltinResponse:
        items = await reader.prompts(_require_call(request))
        return listing()(items, request.params or {}, PROMPTS, presets=_PROMPT_PRESETS)

    async def get_prompt(request: AqlRequest) -> Any:
        params = request.params or {}
        return await reader.prompt(
            _require_call(request), str(params["name"]), params.get("arguments")
        )

    return [
        BuiltinOperation(
            name="list_resources",
            category=Category.READ,
            effect="read_only",
            description="The resources of all servers, and templates of their URIs.",
            answer=list_resources,
            parameters=LISTING,
            returns="ResourceList",
            free=True,
            example={"query": "readme"},
        ),
        BuiltinOperation(
            name="get_resource",
            category=Category.READ,
            effect="read_only",
            description="The contents of a resource, by its URI.",
            answer=get_resource,
            parameters=(parameter("uri", "string", "From list_resources.", required=True),),
            returns="ResourceContents",
            free=True,
            example={"uri": "file:///readme.md"},
        ),
        BuiltinOperation(
            name="list_prompts",
            category=Category.READ,
            effect="read_only",
            description="The prompts of all servers, with their arguments.",
            answer=list_prompts,
            parameters=LISTING,
            returns="PromptList",
            free=True,
            example={"query": "review"},
        ),
        BuiltinOperation(
            name="get_prompt",
            category=Category.READ,
            effect="read_only",
            description="The messages of a prompt, filled in with arguments.",
            answer=get_prompt,
            parameters=(
                parameter("name", "string", "From list_prompts.", required=True),
                parameter("arguments", "object", "The arguments of the prompt, by name."),
            ),
            returns="PromptMessages",
            free=True,
            example={"name": "github.review", "arguments": {"language": "Python"}},
        ),
    ]
