"""The config section `aql`: views, operations, limits, quotas, executions and the safety loop."""

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
"""The view `auto` shows operations if the plain tools cost a model at least this many tokens.
`make bench` measures it: below this number a whole task costs less in the plain view."""

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
    """An endpoint of a profile."""

    categories: Annotated[list[CategoryName], says("The categories of this endpoint.")] = field(
        default_factory=list
    )
    operations: Annotated[
        list[Glob], says("Globs of operations of this endpoint, whatever their category.")
    ] = field(default_factory=list)


class ProfileConfig(Section, frozen=True):
    """A profile: a set of custom endpoints."""

    families: Annotated[
        dict[FamilyName, FamilyConfig],
        says("Endpoints by name. Every category must belong to exactly one of them."),
    ]


class ClientView(Section, frozen=True):
    """A view for some clients or callers."""

    view: Annotated[ViewName, says("plain, auto, aql, aql-single, aql-all, or a profile's name.")]
    clients: Annotated[list[Glob], says("Globs of client names, as clients report them.")] = field(
        default_factory=list
    )
    callers: Annotated[list[Glob], says("Globs of caller names.")] = field(default_factory=list)


class OperationConfig(Section, frozen=True):
    """Settings of operations that override what the node infers."""

    category: Annotated[CategoryName | None, says("The category. Default: inferred.")] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,99}$", extra={"kind": "operation"})] | None,
        says("The name of the operation. Default: derived from the tool's name."),
    ] = None
    danger: Annotated[DangerName | None, says("The danger level. Default: inferred.")] = None
    reasons: Annotated[list[Text], says("Reasons for the danger level, shown to approvers.")] = (
        field(default_factory=list)
    )
    confirmation_message: Annotated[
        Text | None, says("The message for the approver. {parameter} is replaced by its value.")
    ] = None
    identifiers: Annotated[
        list[Text], says("Parameters of an UPDATE that identify the resource.")
    ] = field(default_factory=list)
    read_modify_write: Annotated[
        Text | None,
        says("The operation that reads the resource. Updates are merged into what it returns."),
    ] = None
    deprecated: Annotated[Text | None, says("The version or date of the deprecation.")] = None
    replacement: Annotated[Text | None, says("The operation to use instead.")] = None
    cooldown: Annotated[DurationOrZero, says("Minimum time between two calls.")] = 0.0


class AqlLimits(Section, frozen=True):
    """Limits of AQL requests and responses."""

    RENAMED: ClassVar[Mapping[str, str]] = {"most_page": "max_page"}

    request_bytes: Annotated[Size, says("Size of a request: 64KiB to 10MiB.")] = MEBIBYTE
    response_bytes: Annotated[Size, says("Size of a response: 1MiB to 100MiB.")] = 10 * MEBIBYTE
    string_bytes: Annotated[Size, says("Size of a string: 64KiB to 10MiB.")] = MEBIBYTE
    array_elements: Annotated[
        Annotated[int, Meta(ge=100, le=100_000)], says("Elements of an array.")
    ] = 10_000
    depth: Annotated[Annotated[int, Meta(ge=8, le=64)], says("Levels of nesting.")] = 32
    batch: Annotated[Count, says("Operations in a batch.")] = 50
    page: Annotated[Count, says("Default number of items on a page.")] = 20
    max_page: Annotated[Count, says("Maximum number of items on a page.")] = 100
    concurrent: Annotated[Count, says("Concurrent executions of one caller.")] = 64


class QuotaConfig(Section, frozen=True):
    """A quota of each caller: a warning, then an approval, then rejection."""

    metric: Annotated[QuotaMetric, says("What is counted.")]
    warn: Annotated[Positive, says("Responses carry a warning from this value.")]
    pause: Annotated[Positive, says("An operator must approve to continue above this value.")]
    hard_stop: Annotated[Positive | None, says("Calls above this value are rejected.")] = None


class ApiLimit(Section, frozen=True):
    """A rate limit of an upstream API. Interlock does not send calls that the API would reject."""

    limit: Annotated[Count, says("Maximum number of calls in the window.")]
    scope: Annotated[
        Literal["global", "endpoint", "category"], says("Which calls are counted together.")
    ] = "global"
    server: Annotated[ServerKey | None, says("The server. Default: all servers together.")] = None
    endpoint: Annotated[Glob | None, says("A glob of operations, for scope endpoint.")] = None
    category: Annotated[CategoryName | None, says("The category, for scope category.")] = None
    window: Annotated[Literal["second", "minute", "hour", "day"], says("The time window.")] = (
        "minute"
    )
    cost: Annotated[
        Annotated[float, Meta(ge=0)], says("The cost of one call, for cost quotas.")
    ] = 0.0


class AgentSafety(Section, frozen=True):
    """Safety settings that differ for some agents."""

    max_steps: Annotated[Count | None, says("Default: `safety.max_steps`.")] = None
    tolerance: Annotated[Tolerance | None, says("Default: `safety.tolerance`.")] = None
    deny: Annotated[list[Glob] | None, says("Replaces `safety.deny`.")] = None
    requires_approval: Annotated[
        list[Glob] | None, says("Replaces `safety.requires_approval`.")
    ] = None
    auto_approve: Annotated[list[Glob] | None, says("Replaces `safety.auto_approve`.")] = None


class SafetyConfig(Section, frozen=True):
    """The execution safety loop."""

    mode: Annotated[
        SafetyMode,
        says(
            "enforcing rejects steps, monitoring reports what it would reject, logging only "
            "records, disabled does nothing."
        ),
    ] = "disabled"
    max_steps: Annotated[
        Count, says("After this many steps an operator must approve to continue.")
    ] = 50
    tolerance: Annotated[Tolerance, says("The risk up to which steps need no approval.")] = (
        "moderate"
    )
    tolerance_relaxes_confirm: Annotated[
        bool, says("Let aggressive tolerance skip confirmations.")
    ] = False
    deny: Annotated[list[Glob], says("Actions that are always rejected.")] = field(
        default_factory=lambda: ["drop_*", "delete_all*", "rm -rf*", "*_production*"]
    )
    requires_approval: Annotated[list[Glob], says("Actions that need an approval.")] = field(
        default_factory=lambda: ["delete_*", "*force*", "deploy_*", "git push*"]
    )
    auto_approve: Annotated[list[Glob], says("Actions that need no approval.")] = field(
        default_factory=lambda: ["read_*", "list_*", "get_*", "search_*"]
    )
    stages: Annotated[
        list[Annotated[int, Meta(ge=1, le=5)]], says("The enabled stages of the evaluation.")
    ] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    report_holds: Annotated[
        Duration, says("How long a reported step may be executed after the report.")
    ] = 60.0
    agents: Annotated[dict[Glob, AgentSafety], says("Overrides by glob of agents.")] = field(
        default_factory=dict
    )
    challenge: Annotated[Duration, says("How long a verification code is valid.")] = 300.0
    attempts: Annotated[Count, says("Maximum number of wrong codes in `attempts_within`.")] = 10
    attempts_within: Annotated[Duration, says("The time window of `attempts`.")] = 60.0
    lockout: Annotated[bool, says("Double the wait after each further wrong code.")] = True
    repeat_raises_at: Annotated[
        Count, says("After this many repetitions of one action its risk score rises.")
    ] = 50


class ChannelConfig(Section, frozen=True):
    """A channel that shows verification codes to people and not to models."""

    kind: Annotated[
        Literal["terminal", "page", "desktop", "command"],
        says("`interlock operator`, the approval page, a desktop notification, or your command."),
    ]
    command: Annotated[
        list[Reference], says("A program with arguments. It reads the code from standard input.")
    ] = field(default_factory=list)


class ExecutionsConfig(Section, frozen=True):
    """Executions: operations that continue after their request was answered."""

    RENAMED: ClassVar[Mapping[str, str]] = {"most": "max_stored"}

    keep: Annotated[Duration, says("How long an ended execution is stored.")] = 7 * 86_400.0
    max_stored: Annotated[Count, says("Maximum number of stored executions.")] = 10_000
    survive_session: Annotated[
        bool, says("Continue executions when the session that started them ends.")
    ] = False


class SearchConfig(Section, frozen=True):
    """Search for operations."""

    embeddings: Annotated[
        Literal["auto", "off"],
        says("auto uses embeddings if interlock[embeddings] is installed."),
    ] = "auto"


class AqlConfig(FeatureSection, frozen=True):
    """AQL: a few endpoints instead of every tool."""

    KEY = "aql"
    REMOVED: ClassVar[Mapping[str, str]] = {
        "danger": (
            "the need for approval no longer depends on the view: delete this line, and use "
            "`unannotated`, `effects` of a server, or `policy`"
        ),
    }

    view: Annotated[
        ViewName,
        says(
            "The view of clients that request none: plain, aql (five endpoints), aql-single (one), "
            "aql-all, auto (by size), or a profile's name."
        ),
    ] = "plain"
    clients: Annotated[list[ClientView], says("Views of some clients. The first match counts.")] = (
        field(default_factory=list)
    )
    plain: Annotated[
        Literal["allow", "deny"],
        says(
            "deny shows plain tools only to this machine's command line and to parent nodes: "
            "`?view=plain` is rejected, and clients with the plain view get `aql`."
        ),
    ] = "allow"
    profiles: Annotated[
        dict[FamilyName, ProfileConfig],
        says("Custom endpoints. `semantic` (discover, query, manage, operate) is built in."),
    ] = field(default_factory=dict)
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_]{0,17}_)?$", extra={"kind": "prefix"})],
        says("A prefix of endpoint names, such as `home_`, for clients of several nodes."),
    ] = ""
    operations: Annotated[
        dict[Glob, OperationConfig],
        says("Settings by glob of canonical tool names. The first match counts."),
    ] = field(default_factory=dict)
    trust: Annotated[dict[ServerKey, TrustName], says("The trust level of each server.")] = field(
        default_factory=dict
    )
    aliases: Annotated[bool, says("Accept parameter names in the spelling of the server, too.")] = (
        True
    )
    structured_content: Annotated[
        bool, says("Also send responses as structured content. Doubles the tokens.")
    ] = True
    is_error: Annotated[
        Literal["aql", "mcp"],
        says("mcp: every failure sets isError. aql: only INTERNAL_ERROR and unknown codes."),
    ] = "mcp"
    batch_confirmation: Annotated[
        Literal["halt", "skip"], says("What a batch does at an operation that needs approval.")
    ] = "halt"
    safety_only: Annotated[bool, says("Serve only the operations of the safety loop.")] = False
    notes: Annotated[bool, says("Offer the note operations.")] = True
    slow_ms: Annotated[Count, says("Responses that take longer carry a warning.")] = 5_000
    auto_tokens: Annotated[
        Count,
        says(
            "The view `auto` shows operations if the plain tools have at least this many tokens, "
            "as `interlock tools` estimates them."
        ),
    ] = AUTO_TOKENS
    limits: AqlLimits = field(default_factory=AqlLimits)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    channels: Annotated[list[ChannelConfig], says("Where verification codes are shown.")] = field(
        default_factory=lambda: [ChannelConfig(kind="terminal"), ChannelConfig(kind="page")]
    )
    executions: ExecutionsConfig = field(default_factory=ExecutionsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    quotas: Annotated[list[QuotaConfig], says("Quotas of each caller.")] = field(
        default_factory=list
    )
    api_limits: Annotated[list[ApiLimit], says("Rate limits of upstream APIs.")] = field(
        default_factory=list
    )
