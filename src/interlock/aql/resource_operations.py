"""Operations for the resources and prompts of upstreams.

Each is a request of its own, made for whoever asks, that walks the pipeline like one of the plain
view: what policy keeps from it there, it is kept from here.
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
"""Who is not told what a prompt asks for cannot get it."""
MOST: Final = 100_000
"""So many entries of a list are looked at."""
_OF_MCP: Final = frozenset({"resultType", "ttlMs", "cacheScope", "_meta"})
"""Members of a result that are for the protocol, not for whoever asked."""


class ResourceReader:
    """Requests resources and prompts of upstreams."""

    def __init__(self, host: CallHost) -> None:
        self._host = host

    async def resources(self, parent: Call) -> list[dict[str, Any]]:
        """What there is to read: resources, and templates of such."""
        found = await self._list(parent, RESOURCES_LIST, "resources")
        templates = await self._list(parent, TEMPLATES_LIST, "resourceTemplates")
        return [
            *({"kind": "resource", **one} for one in found),
            *(
                {"kind": "template", "uri": one.get("uriTemplate"), **_without(one, "uriTemplate")}
                for one in templates
            ),
        ]

    async def read(self, parent: Call, uri: str) -> dict[str, Any]:
        """Raises InterlockError."""
        try:
            return await self._ask(parent, RESOURCES_READ, uri)
        except InterlockError as error:
            if _is_missing(error, UNKNOWN_RESOURCE):
                raise errors.no_resource("resource", uri) from error
            raise

    async def prompts(self, parent: Call) -> list[dict[str, Any]]:
        return await self._list(parent, PROMPTS_LIST, "prompts")

    async def prompt(self, parent: Call, name: str, arguments: Any) -> dict[str, Any]:
        """Raises InterlockError."""
        given = encode_value(arguments or {})
        try:
            return await self._ask(parent, PROMPTS_GET, name, arguments=Raw(given))
        except InterlockError as error:
            if _is_missing(error, UNKNOWN_PROMPT):
                raise errors.no_resource("prompt", name) from error
            raise

    async def _list(self, parent: Call, verb: str, member: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < MOST:
            try:
                page = await self._ask(parent, verb, cursor=cursor)
            except InterlockError as error:
                if error.failure is METHOD_NOT_FOUND:
                    # No server has any.
                    return found
                raise
            found += page.get(member, ())
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    async def _ask(self, parent: Call, verb: str, name: str = "", **fields: Any) -> dict[str, Any]:
        call = Call(
            verb,
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
            raise InterlockError(UPSTREAM_PROTOCOL, "The server answered with no object.")
        if result.get("resultType") == INPUT_REQUIRED:
            raise errors.AqlError(
                "CONFLICT_INVALID_STATE",
                "The server asks for something before it answers. Ask for it in the plain view.",
                {"reason": INPUT_REQUIRED},
            )
        return {key: value for key, value in result.items() if key not in _OF_MCP}


def _is_missing(error: InterlockError, missing: Failure) -> bool:
    """Whether the catalog, or a server that was asked, does not know it."""
    if isinstance(error, UpstreamResponseError):
        return error.code == UNKNOWN_RESOURCE.code
    return error.failure in (missing, METHOD_NOT_FOUND)


def _without(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != name}


def _parent(asked: AqlRequest) -> Call:
    assert asked.call is not None, "natives are asked by somebody"
    return asked.call


def reach_natives(
    reaching: ResourceReader, listing: Callable[[], ListResponder]
) -> list[BuiltinOperation]:
    """`listing`: how lists are answered now, which the config may change."""

    async def list_resources(asked: AqlRequest) -> BuiltinResponse:
        items = await reaching.resources(_parent(asked))
        return listing()(items, asked.params or {}, RESOURCES)

    async def get_resource(asked: AqlRequest) -> Any:
        return await reaching.read(_parent(asked), str((asked.params or {})["uri"]))

    async def list_prompts(asked: AqlRequest) -> BuiltinResponse:
        items = await reaching.prompts(_parent(asked))
        return listing()(items, asked.params or {}, PROMPTS, presets=_PROMPT_PRESETS)

    async def get_prompt(asked: AqlRequest) -> Any:
        params = asked.params or {}
        return await reaching.prompt(_parent(asked), str(params["name"]), params.get("arguments"))

    return [
        BuiltinOperation(
            name="list_resources",
            category=Category.READ,
            effect="read_only",
            description="The resources of every server, and templates of their URIs.",
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
            description="The prompts of every server, with their arguments.",
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
            description="The messages of a prompt, by its name, filled in with arguments.",
            answer=get_prompt,
            parameters=(
                parameter("name", "string", "From list_prompts.", required=True),
                parameter("arguments", "object", "What the prompt asks for, by name."),
            ),
            returns="PromptMessages",
            free=True,
            example={"name": "github.review", "arguments": {"language": "Python"}},
        ),
    ]
