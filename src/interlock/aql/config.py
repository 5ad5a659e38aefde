"""What a node is told about AQL: which clients see operations instead of tools, what those are
called, how much a request may hold, and how closely executions are watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field

from interlock.core.config.section import (
    Count,
    Duration,
    DurationOrZero,
    FeatureSection,
    Glob,
    Reference,
    Section,
    ServerKey,
    Size,
    Text,
    says,
)

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * 1024
AUTO_TOKENS: Final = 1_400
"""From so many tokens of plain tools on, as a model is shown them, `view: auto` shows operations.
Measured by `make bench`: below it a whole task costs less in the plain view."""

BUILT_IN_VIEWS: Final = ("plain", "auto", "aql", "aql-single", "aql-all", "crude", "semantic")

CategoryName = Literal["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]
DangerName = Literal["safe", "reversible", "destructive", "dangerous", "forbidden"]
TrustName = Literal["untested", "generated", "validated", "community_reviewed", "certified"]
SafetyMode = Literal["enforcing", "monitoring", "logging", "disabled"]
Tolerance = Literal["conservative", "moderate", "aggressive"]
QuotaMetric = Literal[
    "requests_per_minute",
    "requests_per_hour",
    "requests_per_day",
    "cost_per_hour",
    "cost_per_day",
    "cost_per_month",
]
ViewName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,30}$", extra={"kind": "view"})]
FamilyName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,20}$", extra={"kind": "family"})]
Positive = Annotated[float, Meta(gt=0)]


class FamilyConfig(Section, frozen=True):
    """The operations of one endpoint."""

    categories: Annotated[list[CategoryName], says("What is here by its category.")] = field(
        default_factory=list
    )
    operations: Annotated[
        list[Glob], says("Globs of operations that are here whatever their category is.")
    ] = field(default_factory=list)


class ProfileConfig(Section, frozen=True):
    """Endpoints of your own."""

    families: Annotated[
        dict[FamilyName, FamilyConfig],
        says("Endpoints by name. Every category must be in exactly one of them."),
    ]


class ClientView(Section, frozen=True):
    """Who sees the node in which view."""

    view: Annotated[ViewName, says("plain, auto, aql, aql-single, aql-all, or a profile's name.")]
    clients: Annotated[list[Glob], says("Globs of client names, as clients say them.")] = field(
        default_factory=list
    )
    callers: Annotated[list[Glob], says("Globs of callers.")] = field(default_factory=list)


class OperationConfig(Section, frozen=True):
    """What you know better about operations."""

    category: Annotated[CategoryName | None, says("Its category. Default: found out.")] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,99}$", extra={"kind": "operation"})] | None,
        says("What it is called. Default: made from the tool's name."),
    ] = None
    danger: Annotated[DangerName | None, says("How bad it can get. Default: found out.")] = None
    reasons: Annotated[list[Text], says("Why, for whoever has to confirm it.")] = field(
        default_factory=list
    )
    confirmation_message: Annotated[
        Text | None, says("What a human reads before confirming; {parameter} is filled in.")
    ] = None
    identifiers: Annotated[
        list[Text], says("Parameters of an UPDATE that name what is changed.")
    ] = field(default_factory=list)
    read_modify_write: Annotated[
        Text | None,
        says("The operation that reads what this one replaces: then an update is merged into it."),
    ] = None
    deprecated: Annotated[Text | None, says("Since when it should no longer be used.")] = None
    replacement: Annotated[Text | None, says("What to use instead.")] = None
    cooldown: Annotated[DurationOrZero, says("How long before it may be called again.")] = 0.0


class AqlLimits(Section, frozen=True):
    """How much one AQL request may hold."""

    request_bytes: Annotated[Size, says("64KiB to 10MiB.")] = MEBIBYTE
    response_bytes: Annotated[Size, says("1MiB to 100MiB.")] = 10 * MEBIBYTE
    string_bytes: Annotated[Size, says("64KiB to 10MiB.")] = MEBIBYTE
    array_elements: Annotated[Annotated[int, Meta(ge=100, le=100_000)], says("Of one array.")] = (
        10_000
    )
    depth: Annotated[Annotated[int, Meta(ge=8, le=64)], says("Levels of nesting.")] = 32
    batch: Annotated[Count, says("The most operations of a batch.")] = 50
    page: Annotated[Count, says("Items on a page.")] = 20
    most_page: Annotated[Count, says("The most items that a page may be asked to have.")] = 100
    concurrent: Annotated[Count, says("The most executions of one caller at once.")] = 64


class QuotaConfig(Section, frozen=True):
    """A quota of each caller: warned of, then held for a human, then refused."""

    metric: Annotated[QuotaMetric, says("What is counted.")]
    warn: Annotated[Positive, says("From here on answers carry a warning.")]
    pause: Annotated[Positive, says("From here on a human has to let it go on.")]
    hard_stop: Annotated[Positive | None, says("From here on everything is refused.")] = None


class ApiLimit(Section, frozen=True):
    """What an upstream API itself allows, so that it need not refuse."""

    limit: Annotated[Count, says("So many calls")]
    scope: Annotated[
        Literal["global", "endpoint", "category"], says("What the calls are counted over.")
    ] = "global"
    server: Annotated[ServerKey | None, says("The server. Default: all of them together.")] = None
    endpoint: Annotated[Glob | None, says("A glob of operations, for scope endpoint.")] = None
    category: Annotated[CategoryName | None, says("For scope category.")] = None
    window: Annotated[Literal["second", "minute", "hour", "day"], says("in so long a time.")] = (
        "minute"
    )
    cost: Annotated[
        Annotated[float, Meta(ge=0)], says("What one call costs, for quotas of cost.")
    ] = 0.0


class AgentSafety(Section, frozen=True):
    """What is different for some agents."""

    max_steps: Annotated[Count | None, says("Default: as for all.")] = None
    tolerance: Annotated[Tolerance | None, says("Default: as for all.")] = None
    deny: Annotated[list[Glob] | None, says("Instead of those for all.")] = None
    requires_approval: Annotated[list[Glob] | None, says("Instead of those for all.")] = None
    auto_approve: Annotated[list[Glob] | None, says("Instead of those for all.")] = None


class SafetyConfig(Section, frozen=True):
    """The execution safety loop."""

    mode: Annotated[
        SafetyMode,
        says("enforcing refuses, monitoring says what it would, logging notes, disabled does not."),
    ] = "disabled"
    max_steps: Annotated[Count, says("So many steps, then a human decides whether to go on.")] = 50
    tolerance: Annotated[Tolerance, says("How much risk goes on by itself.")] = "moderate"
    tolerance_relaxes_confirm: Annotated[
        bool, says("Whether aggressive tolerance lets confirmations pass.")
    ] = False
    deny: Annotated[list[Glob], says("Actions that are always refused.")] = field(
        default_factory=lambda: ["drop_*", "delete_all*", "rm -rf*", "*_production*"]
    )
    requires_approval: Annotated[list[Glob], says("Actions that a human lets through.")] = field(
        default_factory=lambda: ["delete_*", "*force*", "deploy_*", "git push*"]
    )
    auto_approve: Annotated[list[Glob], says("Actions that go on by themselves.")] = field(
        default_factory=lambda: ["read_*", "list_*", "get_*", "search_*"]
    )
    stages: Annotated[
        list[Annotated[int, Meta(ge=1, le=5)]], says("The stages of the evaluation that are used.")
    ] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    report_holds: Annotated[Duration, says("How long a reported step may be done after it.")] = 60.0
    agents: Annotated[dict[Glob, AgentSafety], says("Exceptions, by glob of agents.")] = field(
        default_factory=dict
    )
    challenge: Annotated[Duration, says("How long a code may be entered.")] = 300.0
    attempts: Annotated[Count, says("So many wrong codes")] = 10
    attempts_within: Annotated[Duration, says("in so long a time, and no more are taken.")] = 60.0
    lockout: Annotated[bool, says("Whether each further wrong code doubles the wait.")] = True
    repeat_raises_at: Annotated[
        Count, says("From so many repetitions of one action on it counts as riskier.")
    ] = 50


class ChannelConfig(Section, frozen=True):
    """Where codes are shown that a model must not see."""

    kind: Annotated[
        Literal["terminal", "page", "desktop", "command"],
        says("`interlock operator`, the approval page, a desktop notification, or your command."),
    ]
    command: Annotated[
        list[Reference], says("A program and its arguments: it reads the code from its input.")
    ] = field(default_factory=list)


class ExecutionsConfig(Section, frozen=True):
    """Operations that go on after their request was answered."""

    keep: Annotated[Duration, says("How long an ended one is remembered.")] = 7 * 86_400.0
    most: Annotated[Count, says("So many are remembered.")] = 10_000
    survive_session: Annotated[
        bool, says("Whether they go on when the session ends in which they were started.")
    ] = False


class SearchConfig(Section, frozen=True):
    """How operations are found."""

    embeddings: Annotated[
        Literal["auto", "off"],
        says("auto uses them where interlock[embeddings] is installed."),
    ] = "auto"


class AqlConfig(FeatureSection, frozen=True):
    """AQL: a few endpoints instead of every tool."""

    KEY = "aql"
    REMOVED: ClassVar[Mapping[str, str]] = {
        "danger": (
            "what waits for approval is the same in every view now: delete the line, and choose "
            "with `unannotated`, `effects` of a server and `policy`"
        ),
    }

    view: Annotated[
        ViewName,
        says(
            "What clients see that ask for nothing: plain, aql (five endpoints), aql-single (one), "
            "aql-all, auto (by size), or a profile's name."
        ),
    ] = "plain"
    clients: Annotated[list[ClientView], says("Other views for some; the first that fits.")] = (
        field(default_factory=list)
    )
    plain: Annotated[
        Literal["allow", "deny"],
        says(
            "deny shows plain tools to nobody but this machine's command line and nodes above: "
            "`?view=plain` is refused, and who would see them sees `aql`."
        ),
    ] = "allow"
    profiles: Annotated[
        dict[FamilyName, ProfileConfig],
        says("Endpoints of your own. `semantic` (discover, query, manage, operate) is there."),
    ] = field(default_factory=dict)
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_]{0,17}_)?$", extra={"kind": "prefix"})],
        says("In front of the endpoints' names, such as `home_`, for clients of several nodes."),
    ] = ""
    operations: Annotated[
        dict[Glob, OperationConfig], says("By glob of canonical tool names; the first that fits.")
    ] = field(default_factory=dict)
    trust: Annotated[
        dict[ServerKey, TrustName], says("How far servers are trusted with dangerous operations.")
    ] = field(default_factory=dict)
    aliases: Annotated[
        bool, says("Whether parameters may also be spelled as the server spells them.")
    ] = True
    structured_content: Annotated[
        bool, says("Whether answers are also given as structured content: twice the tokens.")
    ] = True
    is_error: Annotated[
        Literal["aql", "mcp"],
        says("mcp: every failure has MCP's isError. aql: only INTERNAL_ERROR and unknown codes."),
    ] = "mcp"
    batch_confirmation: Annotated[
        Literal["halt", "skip"], says("What a batch does at an operation that waits for a human.")
    ] = "halt"
    safety_only: Annotated[
        bool, says("Whether the node serves the operations of the safety loop and nothing else.")
    ] = False
    notes: Annotated[bool, says("Whether the node keeps notes for its callers.")] = True
    slow_ms: Annotated[Count, says("From here on answers say that the operation was slow.")] = 5_000
    auto_tokens: Annotated[
        Count,
        says(
            "From so many tokens of plain tools on, as `interlock tools` estimates them, `auto` "
            "shows operations."
        ),
    ] = AUTO_TOKENS
    limits: AqlLimits = field(default_factory=AqlLimits)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    channels: Annotated[list[ChannelConfig], says("Where codes are shown.")] = field(
        default_factory=lambda: [ChannelConfig(kind="terminal"), ChannelConfig(kind="page")]
    )
    executions: ExecutionsConfig = field(default_factory=ExecutionsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    quotas: Annotated[list[QuotaConfig], says("Quotas of each caller.")] = field(
        default_factory=list
    )
    api_limits: Annotated[list[ApiLimit], says("What upstream APIs allow.")] = field(
        default_factory=list
    )
