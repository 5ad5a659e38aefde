"""MCP as data: revisions, methods, `_meta` keys, and how a result changes between eras.

The session wire (2024-11-05 to 2025-11-25) and the stateless wire (2026-07-28) say the same
things in different envelopes. What differs is written here once, as tables and pure functions.
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
    """Which of the two wires a peer speaks."""

    SESSION = "session"
    STATELESS = "stateless"


# Revisions are an enumerated set. They look like dates, but are never compared as strings.
SESSION_REVISIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
STATELESS_REVISIONS: Final = ("2026-07-28",)
REVISIONS: Final = STATELESS_REVISIONS + SESSION_REVISIONS
LATEST_SESSION: Final = SESSION_REVISIONS[0]
LATEST_STATELESS: Final = STATELESS_REVISIONS[0]

BATCH_REVISIONS: Final = frozenset({"2025-03-26"})
"""The only revision in which a JSON-RPC batch is lawful on the wire."""

ARGUMENT_ERROR_RESULT_REVISIONS: Final = frozenset({"2025-11-25", "2026-07-28"})
"""Revisions that want bad arguments told to the model as a tool result, not a protocol error."""

# Methods. What each of them is stands in METHODS, below.
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
    """What an MCP request is. A new method is a row of METHODS and a handler.

    The tables that the stages look methods up in are derived from METHODS when modules are
    imported: nothing else has to be told of a new one.
    """

    generations: tuple[Era, ...] = _BOTH
    """The protocol generations that have it. Others answer it with 'method not found'."""
    to_client: bool = False
    """A client request: a server sends it."""
    target: Target = ""
    """What a request names. Empty: nothing. Decides to which upstream the request is routed, and
    what policies and scopes call it."""
    name_field: str = ""
    """The member of `params` that names the target."""
    name_header: bool = False
    """Whether `Mcp-Name` repeats the name field."""
    members: tuple[str, ...] = ()
    """The other members of `params` that mean something."""
    lists: str = ""
    """Of a list that the catalog answers: the member of the result with the entries."""
    capability: str = ""
    """What the answering side must have declared."""
    extension: str = ""
    """The extension that an upstream must have declared."""
    scope: str = ""
    """The level that it takes at an upstream, where its target does not say so. A request that
    goes to an upstream and has none takes `write`."""
    is_retryable: bool = False
    """Whether an upstream may be sent it twice. Of a tool, its effect says that."""
    allowed_by_default: bool = False
    """Whether a policy with `default: deny` lets it pass."""
    may_need_input: bool = False
    """Whether a stateless server may answer it with a client request."""
    cacheable: bool = False
    """Whether a stateless result must say how long it may be kept."""
    available_in_topics: bool = False
    """Whether the node answers it in a topic."""


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
    # Tasks of the stateless generation. On the session wire these mean something else.
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
    # A proof is for a call that is judged by itself.
    ax.CONFIRM: Method(members=("confirmation_id", "proof"), allowed_by_default=True),
    # Client requests.
    SAMPLING: Method(to_client=True, capability="sampling"),
    ELICITATION: Method(to_client=True, capability="elicitation"),
    ROOTS: Method(to_client=True, capability="roots"),
}

LIST_METHODS: Final = tuple(name for name, method in METHODS.items() if method.lists)
"""What the catalog answers by itself."""

PROMPT_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.target == "prompt")
RESOURCE_METHODS: Final = frozenset(
    name for name, method in METHODS.items() if method.target == "resource"
)
TASK_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.target == "task")

NAME_FIELDS: Final = {
    name: method.name_field for name, method in METHODS.items() if method.name_field
}
"""The member of `params` that says which tool, prompt, resource or task is meant."""

RETRYABLE_METHODS: Final = frozenset(
    name for name, method in METHODS.items() if method.is_retryable
)

INPUT_METHODS: Final = frozenset(n for n, method in METHODS.items() if method.may_need_input)
"""The only requests that a stateless server may answer with a question."""

CLIENT_REQUESTS: Final = {
    name: method.capability for name, method in METHODS.items() if method.to_client
}
"""What a server may ask of its client, and the capability that the client needs for it."""

REMOVED_FROM_STATELESS: Final = frozenset(
    name for name, method in METHODS.items() if Era.STATELESS not in method.generations
)
"""Session-wire methods that a stateless peer must answer with 'method not found'."""

RELAYED_CAPABILITIES: Final = encode_value(
    {
        "roots": {"listChanged": True},
        "sampling": {"tools": {}, "context": {}},
        "elicitation": {"form": {}, "url": {}},
    }
)
"""What the node can relay to its clients. What they can do themselves is seen when it is asked."""

LOG_LEVELS: Final = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip
"""From the most talkative to the most urgent."""

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
"""A caller's own limit for one call, in milliseconds. The node's limits still hold."""

TASK_META_KEYS: Final = frozenset(
    {RESERVED + "related-task", RESERVED + "model-immediate-response"}
)
"""Reserved keys that mean the same to everybody on the way; all others are between neighbours."""
FORWARDED_META_KEYS: Final = (
    frozenset({"traceparent", "tracestate", "baggage"}) | ax.EVENT_META_KEYS | TASK_META_KEYS
)
"""The keys of a caller's `_meta` that go on. Any other may be a secret that is for this node only,
or claim for the next hop what only the node may say."""

# Members that only a stateless result has.
_STATELESS_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
_COMPLETE_HEAD: Final = b'{"resultType":"complete",'
_COMPLETE_HEAD_LENGTH: Final = len(_COMPLETE_HEAD)
COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
TASK: Final = "task"
_DEFINED_CODES: Final = frozenset({-32020, -32021, -32022})
"""All that 2026-07-28 knows between -32099 and -32000."""


class Implementation(msgspec.Struct, gc=False, omit_defaults=True):
    """Who a peer says it is."""

    name: str = "unknown"
    version: str = "0"


class InitializeParams(msgspec.Struct, gc=False, rename="camel"):
    """What a session client opens with."""

    protocol_version: str
    capabilities: Raw = Raw(b"{}")
    client_info: Implementation = msgspec.field(default_factory=Implementation)


class InitializeResult(msgspec.Struct, gc=False, rename="camel"):
    """What a session server answers."""

    protocol_version: str
    capabilities: dict[str, Any] = msgspec.field(default_factory=dict)
    server_info: dict[str, Any] = msgspec.field(default_factory=dict)
    instructions: str | None = None


class DiscoverResult(msgspec.Struct, gc=False, rename="camel"):
    """What a stateless server says about itself."""

    supported_versions: list[str]
    capabilities: dict[str, Any] = msgspec.field(default_factory=dict)
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict, name="_meta")


class ListPage(msgspec.Struct, gc=False, rename="camel"):
    """A page of `tools/list`: each tool raw, because one bad entry must not hide the others."""

    tools: list[Raw] = msgspec.field(default_factory=list)
    next_cursor: str | None = None


class ProgressParams(msgspec.Struct, gc=False, rename="camel"):
    """The part of a progress notification that routes it."""

    progress_token: int | str | UnsetType = UNSET


class ResourceUpdatedParams(msgspec.Struct, gc=False):
    """Which resource is not what it was."""

    uri: str


class ServerRequestParams(msgspec.Struct, gc=False):
    """The part of a server's question that is about the question itself."""

    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class CancelledParams(msgspec.Struct, gc=False, rename="camel"):
    """What a cancellation names; the id stays raw, as ids do."""

    request_id: Raw | UnsetType = UNSET
    reason: str | None = None


class ResultSummary(msgspec.Struct, gc=False, rename="camel"):
    """What a result says about itself: read once, without opening what it carries."""

    result_type: str = ""
    """Empty: it does not say. On the session wire no result does."""
    is_error: bool = False
    ttl_ms: Raw | UnsetType = UNSET
    cache_scope: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


decode_result_summary = msgspec.json.Decoder(ResultSummary).decode
"""`summarize_result` for those who look out for its exceptions themselves."""
INVALID_SUMMARY: Final = ResultSummary(result_type="?")
"""Of a result that says of itself what no result may say."""


class ToolCallParams(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The params of a plain `tools/call`."""

    name: str
    arguments: Raw = Raw(b"{}")
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


class ToolCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A plain `tools/call`: by far the most frequent request, read in one go."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: Literal["tools/call"]
    params: ToolCallParams


_decode_tool_call = msgspec.json.Decoder(ToolCall).decode


def decode_tool_call(data: bytes) -> ToolCall | None:
    """`data` as a plain `tools/call`. None for everything else, mistakes included.

    A shortcut, no second opinion: what it does not take is read, and judged, the general way. So
    is a call whose id is neither digits nor a string: whoever reads the id looks at that.
    """
    try:
        if not data.isascii():
            data.decode()
        call = _decode_tool_call(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return call if call.params.name else None


def negotiate_revision(requested: str) -> str:
    """The session revision to answer `initialize` with: the client's if we have it, else ours."""
    return requested if requested in SESSION_REVISIONS else LATEST_SESSION


def unsupported_version(requested: str) -> ProtocolError:
    """-32022, with what is supported."""
    return ProtocolError(
        f"Protocol version {requested!r} is not supported.",
        UNSUPPORTED_VERSION,
        {"supported": list(REVISIONS), "requested": requested},
    )


def select_forwarded_meta(meta: dict[str, Raw]) -> dict[str, Raw]:
    """What of a caller's `_meta` goes on: traces, events and tasks, and nothing else."""
    return {key: value for key, value in meta.items() if key in FORWARDED_META_KEYS}


def remove_hop_meta(message: bytes | Raw) -> bytes:
    """An object (params of a notification or a question, or an answer) without the keys of its
    `_meta` that are between two neighbours. What cannot be read passes as it is."""
    raw = bytes(message)
    # The key may be spelled with an escape, so its prefix is looked for, too.
    if raw.find(b'_meta"') < 0 and raw.find(b"\\u") < 0:
        return raw
    try:
        members = decode_members(raw)
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return raw
    kept = {
        key: value
        for key, value in meta.items()
        if key in TASK_META_KEYS or not (key.startswith(RESERVED) or key == ax.REQUEST)
    }
    if len(kept) == len(meta):
        return raw
    if kept:
        members["_meta"] = Raw(encode_members(kept))
    else:
        del members["_meta"]
    return encode_members(members)


@lru_cache(maxsize=4096)
def supports_ax(capabilities: bytes) -> bool:
    """Whether a client says that it speaks MCP-AX: `experimental.mcpax` of what it can do."""
    try:
        experimental = decode_members(decode_members(capabilities)["experimental"])
    except (KeyError, ProtocolError):
        return False
    declared = experimental.get(ax.EXPERIMENT)
    return declared is not None and bytes(declared) not in (NULL, b"false")


@lru_cache(maxsize=4096)
def relayed_capabilities(promised: bytes) -> bytes:
    """What a client of the session wire promises, as far as it holds through this node: all but
    tasks. The session wire's own are between two neighbours, and those of the stateless wire mean
    nothing on the session wire. What cannot be read counts as nothing."""
    try:
        members = decode_value(promised)
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
    # In one order: the same promise is the same bytes, however it was spelled.
    return msgspec.json.encode(members, order="sorted")


def declares_capability(
    capabilities: Mapping[str, Any], capability: str = "", extension: str = ""
) -> bool:
    """Whether a server has declared a capability, or an extension."""
    if not extension:
        return capability in capabilities
    extensions = capabilities.get("extensions")
    return isinstance(extensions, Mapping) and isinstance(extensions.get(extension), Mapping)


def remove_capabilities(promised: bytes, denied: frozenset[str]) -> bytes:
    """What is promised, but for some capabilities."""
    if not denied:
        return promised
    kept = {name: raw for name, raw in decode_members(promised).items() if name not in denied}
    return encode_members(kept)


def to_stateless_code(code: int) -> int:
    """An upstream's error code as a stateless client may be told it."""
    if code == -32002:
        return -32602  # resource not found, in the words of the newer revision
    if -32099 <= code <= -32000 and code not in _DEFINED_CODES:
        return -32603
    return code


def to_stateless_result(result: bytes | Raw, server_info: bytes) -> bytes:
    """A session server's result as a stateless client must see it.

    The common case is a splice at the front; only a result that already uses one of the names is
    opened. Raises ProtocolError for a result that is no object.
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
    meta = _users_meta(members)
    meta[META_SERVER_INFO] = Raw(server_info)
    members["_meta"] = Raw(encode_members(meta))
    return encode_members(members)


def summarize_result(result: bytes | Raw) -> ResultSummary:
    """What `result` says about itself. Never raises."""
    try:
        return decode_result_summary(result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return INVALID_SUMMARY


def to_session_result(result: bytes, glance: ResultSummary | None = None) -> bytes:
    """A stateless server's result as a session client must see it: nothing of the other era.

    `glance`: of this result, when somebody has it. Raises ProtocolError for what is no object.
    """
    if glance is None:
        glance = summarize_result(result)
    raw = bytes(result)
    if (
        glance.result_type == COMPLETE
        and glance.meta is UNSET
        and glance.ttl_ms is UNSET
        and glance.cache_scope is UNSET
        and raw[:_COMPLETE_HEAD_LENGTH] == _COMPLETE_HEAD
        # Not `in`: on bytes that costs three times as much.
        and raw.count(b'"resultType"') == 1
    ):
        # The common case: one member at the front is all there is to take away.
        return b"{" + raw[_COMPLETE_HEAD_LENGTH:]
    members = _result_members(raw)
    for name in _STATELESS_MEMBERS:
        members.pop(name, None)
    if "_meta" in members:
        kept = _users_meta(members)
        if kept:
            members["_meta"] = Raw(encode_members(kept))
        else:
            del members["_meta"]
    return encode_members(members)


def _result_members(result: bytes | Raw) -> dict[str, Raw]:
    try:
        return decode_members(result)
    except ProtocolError:
        raise ProtocolError("The server's result is not an object.", UPSTREAM_PROTOCOL) from None


def _users_meta(members: dict[str, Raw]) -> dict[str, Raw]:
    """What of a result's `_meta` means something to its reader: all but the reserved keys."""
    raw = members.get("_meta")
    # Some servers write out what they have not: `null` is no `_meta` at all.
    if raw is None or bytes(raw) == NULL:
        return {}
    try:
        meta = decode_members(raw)
    except ProtocolError:
        raise ProtocolError(
            "`_meta` of the server's result is not an object.", UPSTREAM_PROTOCOL
        ) from None
    return {key: value for key, value in meta.items() if not key.startswith(RESERVED)}


def write_tool_error(text: str, code: str, data: dict[str, Any] | None = None) -> bytes:
    """A tool result that tells the model what it did wrong, and a program the stable code."""
    return encode_value(
        {
            "content": [{"type": "text", "text": text}],
            "isError": True,
            "_meta": {"dev.interlock/error": {**(data or {}), "code": code}},
        }
    )
