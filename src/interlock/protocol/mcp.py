"""MCP as data: revisions, methods, `_meta` keys, and the conversion of results.

There are two protocol generations: session (2024-11-05 to 2025-11-25) and stateless (2026-07-28).
This module contains their differences, as tables and pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.errors import UNSUPPORTED_VERSION, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import (
    NULL,
    decode_members,
    decode_value,
    encode_members,
    encode_value,
)
from interlock.protocol.scopes import READ


class Era(Enum):
    """The protocol generation of a peer."""

    SESSION = "session"
    STATELESS = "stateless"


# Revisions are an enumeration. They look like dates, but are never compared as strings.
SESSION_REVISIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
STATELESS_REVISIONS: Final = ("2026-07-28",)
REVISIONS: Final = STATELESS_REVISIONS + SESSION_REVISIONS
LATEST_SESSION: Final = SESSION_REVISIONS[0]
LATEST_STATELESS: Final = STATELESS_REVISIONS[0]

BATCH_REVISIONS: Final = frozenset({"2025-03-26"})
"""The only revision with JSON-RPC batches."""

ARGUMENT_ERROR_RESULT_REVISIONS: Final = frozenset({"2025-11-25", "2026-07-28"})
"""Revisions that report invalid arguments to the model in a tool result, not as a protocol
error."""

# Methods. METHODS, below, describes each of them.
INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"
PING: Final = "ping"
TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
PROMPTS_LIST: Final = "prompts/list"
PROMPTS_GET: Final = "prompts/get"
RESOURCES_LIST: Final = "resources/list"
TEMPLATES_LIST: Final = "resources/templates/list"
RESOURCES_READ: Final = "resources/read"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
COMPLETE_ARGUMENT: Final = "completion/complete"
SKILLS_LIST: Final = "skills/list"
SKILLS_GET: Final = "skills/get"
DIRECTORY_READ: Final = "resources/directory/read"
LISTEN: Final = "subscriptions/listen"
SET_LEVEL: Final = "logging/setLevel"
TASKS_GET: Final = "tasks/get"
TASKS_UPDATE: Final = "tasks/update"
TASKS_CANCEL: Final = "tasks/cancel"
TASKS_RESULT: Final = "tasks/result"
TASKS_LIST: Final = "tasks/list"
SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
ROOTS: Final = "roots/list"

# Extensions.
RESERVED: Final = "io.modelcontextprotocol/"
TASKS_EXTENSION: Final = RESERVED + "tasks"
UI_EXTENSION: Final = RESERVED + "ui"
SKILLS_EXTENSION: Final = RESERVED + "skills"

Target = Literal["", "tool", "prompt", "resource", "task", "reference"]

_BOTH: Final = (Era.SESSION, Era.STATELESS)
_SESSION: Final = (Era.SESSION,)
_STATELESS: Final = (Era.STATELESS,)


class Method(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An MCP method. A new method is a row of METHODS and a handler.

    The tables of methods that the stages use are derived from METHODS at import.
    """

    generations: tuple[Era, ...] = _BOTH
    """The protocol generations that have it. Others respond with 'method not found'."""
    to_client: bool = False
    """True for a client request, which a server sends."""
    target: Target = ""
    """The kind of target that a request names. Empty: none. It determines the upstream of the
    request, and its name in policies and scopes."""
    name_field: str = ""
    """The member of `params` that names the target."""
    name_header: bool = False
    """True if `Mcp-Name` repeats the name field."""
    members: tuple[str, ...] = ()
    """The other defined members of `params`."""
    lists: str = ""
    """For a list from the catalog: the member of the result with the entries."""
    capability: str = ""
    """The capability that the responding side must have declared."""
    extension: str = ""
    """The extension that an upstream must have declared."""
    scope: str = ""
    """The level that it requires at an upstream, if its target does not determine it. A request to
    an upstream without a scope requires `write`."""
    is_retryable: bool = False
    """True if it may be sent to an upstream twice. For a tool, its effect determines that."""
    allowed_by_default: bool = False
    """True if a policy with `default: deny` allows it."""
    may_need_input: bool = False
    """True if a stateless server may respond with a client request."""
    cacheable: bool = False
    """True if a stateless result must contain its cache lifetime."""
    available_in_topics: bool = False
    """True if the node supports it in a topic."""


METHODS: Final[dict[str, Method]] = {
    INITIALIZE: Method(generations=_SESSION, allowed_by_default=True, available_in_topics=True),
    DISCOVER: Method(generations=_STATELESS, allowed_by_default=True),
    PING: Method(generations=_SESSION, allowed_by_default=True, available_in_topics=True),
    TOOLS_LIST: Method(
        lists="tools",
        capability="tools",
        allowed_by_default=True,
        cacheable=True,
        available_in_topics=True,
    ),
    TOOLS_CALL: Method(
        target="tool",
        name_field="name",
        name_header=True,
        members=("arguments", "task", "taskId"),
        capability="tools",
        may_need_input=True,
        available_in_topics=True,
    ),
    PROMPTS_LIST: Method(
        lists="prompts",
        capability="prompts",
        allowed_by_default=True,
        cacheable=True,
        available_in_topics=True,
    ),
    PROMPTS_GET: Method(
        target="prompt",
        name_field="name",
        name_header=True,
        members=("arguments",),
        capability="prompts",
        scope=READ,
        is_retryable=True,
        may_need_input=True,
        available_in_topics=True,
    ),
    RESOURCES_LIST: Method(
        lists="resources",
        capability="resources",
        allowed_by_default=True,
        cacheable=True,
        available_in_topics=True,
    ),
    TEMPLATES_LIST: Method(
        lists="resourceTemplates",
        capability="resources",
        allowed_by_default=True,
        cacheable=True,
        available_in_topics=True,
    ),
    RESOURCES_READ: Method(
        target="resource",
        name_field="uri",
        name_header=True,
        capability="resources",
        scope=READ,
        is_retryable=True,
        may_need_input=True,
        cacheable=True,
        available_in_topics=True,
    ),
    SUBSCRIBE: Method(
        generations=_SESSION,
        target="resource",
        name_field="uri",
        capability="resources",
        scope=READ,
        is_retryable=True,
    ),
    UNSUBSCRIBE: Method(
        generations=_SESSION,
        target="resource",
        name_field="uri",
        capability="resources",
        scope=READ,
        is_retryable=True,
        allowed_by_default=True,
    ),
    COMPLETE_ARGUMENT: Method(
        target="reference",
        members=("ref", "argument", "context"),
        capability="completions",
        scope=READ,
        is_retryable=True,
    ),
    # The skills extension (SEP-2640).
    SKILLS_LIST: Method(
        lists="skills",
        extension=SKILLS_EXTENSION,
        allowed_by_default=True,
        available_in_topics=True,
    ),
    SKILLS_GET: Method(
        target="resource",
        name_field="uri",
        extension=SKILLS_EXTENSION,
        scope=READ,
        is_retryable=True,
    ),
    DIRECTORY_READ: Method(
        target="resource",
        name_field="uri",
        members=("cursor",),
        extension=SKILLS_EXTENSION,
        scope=READ,
        is_retryable=True,
    ),
    LISTEN: Method(generations=_STATELESS, allowed_by_default=True),
    SET_LEVEL: Method(
        generations=_SESSION, members=("level",), capability="logging", allowed_by_default=True
    ),
    # Tasks of the stateless protocol. In the session protocol these methods differ.
    TASKS_GET: Method(
        target="task",
        name_field="taskId",
        name_header=True,
        scope=READ,
        is_retryable=True,
        allowed_by_default=True,
    ),
    TASKS_UPDATE: Method(
        target="task", name_field="taskId", name_header=True, scope=READ, allowed_by_default=True
    ),
    TASKS_CANCEL: Method(
        target="task", name_field="taskId", name_header=True, scope=READ, allowed_by_default=True
    ),
    TASKS_RESULT: Method(generations=_SESSION),
    TASKS_LIST: Method(generations=_SESSION),
    # A proof belongs to a call that is authorized itself.
    ax.CONFIRM: Method(members=("confirmation_id", "proof"), allowed_by_default=True),
    # Client requests.
    SAMPLING: Method(to_client=True, capability="sampling"),
    ELICITATION: Method(to_client=True, capability="elicitation"),
    ROOTS: Method(to_client=True, capability="roots"),
}

LIST_METHODS: Final = tuple(name for name, method in METHODS.items() if method.lists)
"""Lists that the node returns from its catalog."""

PROMPT_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.target == "prompt")
RESOURCE_METHODS: Final = frozenset(
    name for name, method in METHODS.items() if method.target == "resource"
)
TASK_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.target == "task")

NAME_FIELDS: Final = {
    name: method.name_field for name, method in METHODS.items() if method.name_field
}
"""The member of `params` that names the tool, prompt, resource or task."""

RETRYABLE_METHODS: Final = frozenset(
    name for name, method in METHODS.items() if method.is_retryable
)

INPUT_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.may_need_input)
"""The only methods for which a stateless server may request input."""

CLIENT_REQUESTS: Final = {
    name: method.capability for name, method in METHODS.items() if method.to_client
}
"""Requests of a server to its client, and the capability that the client needs."""

REMOVED_FROM_STATELESS: Final = frozenset(
    name for name, method in METHODS.items() if Era.STATELESS not in method.generations
)
"""Session methods for which a stateless peer must respond with 'method not found'."""

RELAYED_CAPABILITIES: Final = encode_value(
    {
        "roots": {"listChanged": True},
        "sampling": {"tools": {}, "context": {}},
        "elicitation": {"form": {}, "url": {}},
    }
)
"""Client requests that the node can relay. The capabilities of a client are checked per request."""

LOG_LEVELS: Final = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip
"""From the lowest to the highest severity."""

INITIALIZED: Final = "notifications/initialized"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG_MESSAGE: Final = "notifications/message"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
ROOTS_CHANGED: Final = "notifications/roots/list_changed"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
TASK_CHANGED: Final = "notifications/tasks"

# `_meta` keys.
META_VERSION: Final = RESERVED + "protocolVersion"
META_CLIENT_INFO: Final = RESERVED + "clientInfo"
META_CLIENT_CAPABILITIES: Final = RESERVED + "clientCapabilities"
META_SERVER_INFO: Final = RESERVED + "serverInfo"
META_LOG_LEVEL: Final = RESERVED + "logLevel"
META_SUBSCRIPTION: Final = RESERVED + "subscriptionId"
META_PROGRESS_TOKEN: Final = "progressToken"
META_TIMEOUT: Final = "dev.interlock/timeoutMs"
"""The timeout of a caller for one call, in milliseconds. The limits of the node still apply."""
META_APPROVAL_ONLY: Final = "dev.interlock/approvalOnly"
"""The id of an approval. The call gets the result of this approval or an error, and is never a new
call."""

TASK_META_KEYS: Final = frozenset(
    {RESERVED + "related-task", RESERVED + "model-immediate-response"}
)
"""Reserved keys that are valid end to end. All other reserved keys are for one hop."""
FORWARDED_META_KEYS: Final = (
    frozenset({"traceparent", "tracestate", "baggage", META_APPROVAL_ONLY})
    | ax.EVENT_META_KEYS
    | TASK_META_KEYS
)
"""The keys of a caller's `_meta` that are forwarded. Any other key may be a secret for this node
only, or a claim that only the node may make to the next hop."""

# Members that only a stateless result has.
_STATELESS_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
_COMPLETE_HEAD: Final = b'{"resultType":"complete",'
_COMPLETE_HEAD_LENGTH: Final = len(_COMPLETE_HEAD)
COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
TASK: Final = "task"
_DEFINED_CODES: Final = frozenset({-32020, -32021, -32022})
"""The codes between -32099 and -32000 that 2026-07-28 defines."""


class Implementation(msgspec.Struct, gc=False, omit_defaults=True):
    """The name and version of a peer, as it declares them."""

    name: str = "unknown"
    version: str = "0"


class InitializeParams(msgspec.Struct, gc=False, rename="camel"):
    """The params of `initialize`."""

    protocol_version: str
    capabilities: Raw = Raw(b"{}")
    client_info: Implementation = msgspec.field(default_factory=Implementation)


class InitializeResult(msgspec.Struct, gc=False, rename="camel"):
    """The result of `initialize`."""

    protocol_version: str
    capabilities: dict[str, Any] = msgspec.field(default_factory=dict)
    server_info: dict[str, Any] = msgspec.field(default_factory=dict)
    instructions: str | None = None


class DiscoverResult(msgspec.Struct, gc=False, rename="camel"):
    """The result of `server/discover`."""

    supported_versions: list[str]
    capabilities: dict[str, Any] = msgspec.field(default_factory=dict)
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict, name="_meta")


class ListPage(msgspec.Struct, gc=False, rename="camel"):
    """A page of `tools/list`. Each tool is raw, so that one invalid entry does not hide the
    others."""

    tools: list[Raw] = msgspec.field(default_factory=list)
    next_cursor: str | None = None


class ProgressParams(msgspec.Struct, gc=False, rename="camel"):
    """The part of a progress notification that identifies its request."""

    progress_token: int | str | UnsetType = UNSET


class ResourceUpdatedParams(msgspec.Struct, gc=False):
    """The params of `notifications/resources/updated`."""

    uri: str


class ServerRequestParams(msgspec.Struct, gc=False):
    """The `_meta` of a client request."""

    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class CancelledParams(msgspec.Struct, gc=False, rename="camel"):
    """The params of `notifications/cancelled`. The id stays raw."""

    request_id: Raw | UnsetType = UNSET
    reason: str | None = None


class ResultSummary(msgspec.Struct, gc=False, rename="camel"):
    """The protocol members of a result, decoded once without its content."""

    result_type: str = ""
    """Empty: not set. Session results never have it."""
    is_error: bool = False
    ttl_ms: Raw | UnsetType = UNSET
    cache_scope: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


decode_result_summary = msgspec.json.Decoder(ResultSummary).decode
"""`summarize_result` for callers that handle its exceptions themselves."""
INVALID_SUMMARY: Final = ResultSummary(result_type="?")
"""The summary of a result with invalid protocol members."""


class ToolCallParams(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The params of a plain `tools/call`."""

    name: str
    arguments: Raw = Raw(b"{}")
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


class ToolCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A plain `tools/call`, the most frequent request, decoded in one step."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: Literal["tools/call"]
    params: ToolCallParams


_decode_tool_call = msgspec.json.Decoder(ToolCall).decode


def decode_tool_call(data: bytes) -> ToolCall | None:
    """Decode a plain `tools/call`. Return None for every other message, including invalid ones.

    This is a shortcut: other messages are decoded and checked by `jsonrpc`. The id may be neither
    digits nor a string: its reader checks that.
    """
    try:
        if not data.isascii():
            data.decode()
        call = _decode_tool_call(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return call if call.params.name else None


def negotiate_revision(requested: str) -> str:
    """Return the session revision for `initialize`: the requested one if supported, else the
    latest."""
    return requested if requested in SESSION_REVISIONS else LATEST_SESSION


def unsupported_version(requested: str) -> ProtocolError:
    """Return the error -32022 with the supported revisions."""
    return ProtocolError(
        f"Protocol version {requested!r} is not supported.",
        UNSUPPORTED_VERSION,
        {"supported": list(REVISIONS), "requested": requested},
    )


def select_forwarded_meta(meta: dict[str, Raw]) -> dict[str, Raw]:
    """Return the `_meta` keys of a caller that are forwarded: traces, events and tasks."""
    return {key: value for key, value in meta.items() if key in FORWARDED_META_KEYS}


def remove_hop_meta(message: bytes | Raw) -> bytes:
    """Return an object without the `_meta` keys that are for one hop only. Invalid objects are
    returned unchanged.

    Args:
        message: params of a notification or a client request, or a client response.
    """
    raw = bytes(message)
    # The key may be written with an escape, so escapes are searched, too.
    if raw.find(b'_meta"') < 0 and raw.find(b"\\u") < 0:
        return raw
    try:
        members = decode_members(raw)
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return raw
    forwarded = {
        key: value
        for key, value in meta.items()
        if key in TASK_META_KEYS or not (key.startswith(RESERVED) or key == ax.REQUEST)
    }
    if len(forwarded) == len(meta):
        return raw
    if forwarded:
        members["_meta"] = Raw(encode_members(forwarded))
    else:
        del members["_meta"]
    return encode_members(members)


@lru_cache(maxsize=4096)
def supports_ax(capabilities: bytes) -> bool:
    """Return whether a client declares MCP-AX (`experimental.mcpax` of its capabilities)."""
    try:
        experimental = decode_members(decode_members(capabilities)["experimental"])
    except (KeyError, ProtocolError):
        return False
    declared = experimental.get(ax.EXPERIMENT)
    return declared is not None and bytes(declared) not in (NULL, b"false")


@lru_cache(maxsize=4096)
def relayed_capabilities(declared: bytes) -> bytes:
    """Return the capabilities of a session client that are valid through this node: all but tasks.

    Tasks of the session protocol are for one hop, and those of the stateless protocol are not
    defined in the session protocol. Invalid capabilities count as none.
    """
    try:
        members = decode_value(declared)
    except ProtocolError:
        return b"{}"
    if not isinstance(members, dict):
        return b"{}"
    members.pop("tasks", None)
    extensions = members.get("extensions")
    if isinstance(extensions, dict):
        extensions.pop(TASKS_EXTENSION, None)
    elif extensions is not None:
        return b"{}"
    # Sorted, so that equal capabilities are equal bytes.
    return msgspec.json.encode(members, order="sorted")


def declares_capability(
    capabilities: Mapping[str, Any], capability: str = "", extension: str = ""
) -> bool:
    """Return whether a server has declared a capability or an extension."""
    if not extension:
        return capability in capabilities
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and isinstance(extensions.get(extension), Mapping)


def remove_capabilities(declared: bytes, denied: frozenset[str]) -> bytes:
    """Return the declared capabilities without the denied ones."""
    if not denied:
        return declared
    allowed = {name: raw for name, raw in decode_members(declared).items() if name not in denied}
    return encode_members(allowed)


def to_stateless_code(code: int) -> int:
    """Convert an error code of an upstream for a stateless client."""
    if code == -32002:
        return -32602  # Resource not found.
    if -32099 <= code <= -32000 and code not in _DEFINED_CODES:
        return -32603
    return code


def to_stateless_result(result: bytes | Raw, server_info: bytes) -> bytes:
    """Convert the result of a session server for a stateless client.

    Usually members are inserted at the front. Only a result that already contains one of the names
    is decoded. Raises ProtocolError if the result is not an object.
    """
    raw = bytes(result)
    if raw[:1] == b"{" and b'"resultType"' not in raw and b'"_meta"' not in raw:
        head = b'{"resultType":"complete","_meta":{"%b":%b}' % (
            META_SERVER_INFO.encode(),
            server_info,
        )
        rest = raw[1:].lstrip()
        return head + (b"," + rest if rest[:1] != b"}" else rest)
    members = _result_members(raw)
    members.setdefault("resultType", Raw(b'"complete"'))
    meta = _unreserved_meta(members)
    meta[META_SERVER_INFO] = Raw(server_info)
    members["_meta"] = Raw(encode_members(meta))
    return encode_members(members)


def summarize_result(result: bytes | Raw) -> ResultSummary:
    """Decode the protocol members of a result. Never raises."""
    try:
        return decode_result_summary(result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return INVALID_SUMMARY


def to_session_result(result: bytes, summary: ResultSummary | None = None) -> bytes:
    """Convert the result of a stateless server for a session client.

    Args:
        summary: of this result, if it is known.

    Raises:
        ProtocolError: the result is not an object.
    """
    if summary is None:
        summary = summarize_result(result)
    raw = bytes(result)
    if (
        summary.result_type == COMPLETE
        and summary.meta is UNSET
        and summary.ttl_ms is UNSET
        and summary.cache_scope is UNSET
        and raw[:_COMPLETE_HEAD_LENGTH] == _COMPLETE_HEAD
        # Not `in`: on bytes it is three times slower.
        and raw.count(b'"resultType"') == 1
    ):
        # The common case: only the first member must be removed.
        return b"{" + raw[_COMPLETE_HEAD_LENGTH:]
    members = _result_members(raw)
    for name in _STATELESS_MEMBERS:
        members.pop(name, None)
    if "_meta" in members:
        meta = _unreserved_meta(members)
        if meta:
            members["_meta"] = Raw(encode_members(meta))
        else:
            del members["_meta"]
    return encode_members(members)


def _result_members(result: bytes | Raw) -> dict[str, Raw]:
    try:
        return decode_members(result)
    except ProtocolError:
        raise ProtocolError(
            "The result of the server is not an object.", UPSTREAM_PROTOCOL
        ) from None


def _unreserved_meta(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return the `_meta` of a result without the reserved keys."""
    raw = members.get("_meta")
    # Some servers write `null` for a missing `_meta`.
    if raw is None or bytes(raw) == NULL:
        return {}
    try:
        meta = decode_members(raw)
    except ProtocolError:
        raise ProtocolError(
            "`_meta` in the result of the server is not an object.", UPSTREAM_PROTOCOL
        ) from None
    return {key: value for key, value in meta.items() if not key.startswith(RESERVED)}


def write_tool_error(text: str, code: str, data: dict[str, Any] | None = None) -> bytes:
    """Return a tool result with an error message for the model and a stable code for a program."""
    return encode_value(
        {
            "content": [{"type": "text", "text": text}],
            "isError": True,
            "_meta": {"dev.interlock/error": {**(data or {}), "code": code}},
        }
    )
