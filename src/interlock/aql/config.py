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
    help_text,
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

    categories: Annotated[list[CategoryName], help_text("The categories of this endpoint.")] = (
        field(default_factory=list)
    )
    operations: Annotated[
        list[Glob], help_text("Globs of operations of this endpoint, whatever their category.")
    ] = field(default_factory=list)


class ProfileConfig(Section, frozen=True):
    """A profile: a set of custom endpoints."""

    families: Annotated[
        dict[FamilyName, FamilyConfig],
        help_text("Endpoints by name. Every category must belong to exactly one of them."),
    ]


class ClientView(Section, frozen=True):
    """A view for some clients or callers."""

    view: Annotated[
        ViewName, help_text("plain, auto, aql, aql-single, aql-all, or a profile's name.")
    ]
    clients: Annotated[list[Glob], help_text("Globs of client names, as clients report them.")] = (
        field(default_factory=list)
    )
    callers: Annotated[list[Glob], help_text("Globs of caller names.")] = field(
        default_factory=list
    )


class OperationConfig(Section, frozen=True):
    """Settings of operations that override what the node infers."""

    category: Annotated[CategoryName | None, help_text("The category. Default: inferred.")] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,99}$", extra={"kind": "operation"})] | None,
        help_text("The name of the operation. Default: derived from the tool's name."),
    ] = None
    danger: Annotated[DangerName | None, help_text("The danger level. Default: inferred.")] = None
    reasons: Annotated[
        list[Text], help_text("Reasons for the danger level, shown to approvers.")
    ] = field(default_factory=list)
    confirmation_message: Annotated[
        Text | None,
        help_text("The message for the approver. {parameter} is replaced by its value."),
    ] = None
    identifiers: Annotated[
        list[Text], help_text("Parameters of an UPDATE that identify the resource.")
    ] = field(default_factory=list)
    read_modify_write: Annotated[
        Text | None,
        help_text(
            "The operation that reads the resource. Updates are merged into what it returns."
        ),
    ] = None
    deprecated: Annotated[Text | None, help_text("The version or date of the deprecation.")] = None
    replacement: Annotated[Text | None, help_text("The operation to use instead.")] = None
    cooldown: Annotated[DurationOrZero, help_text("Minimum time between two calls.")] = 0.0


class AqlLimits(Section, frozen=True):
    """Limits of AQL requests and responses."""

    RENAMED: ClassVar[Mapping[str, str]] = {"most_page": "max_page"}

    request_bytes: Annotated[Size, help_text("Size of a request: 64KiB to 10MiB.")] = MEBIBYTE
    response_bytes: Annotated[Size, help_text("Size of a response: 1MiB to 100MiB.")] = (
        10 * MEBIBYTE
    )
    string_bytes: Annotated[Size, help_text("Size of a string: 64KiB to 10MiB.")] = MEBIBYTE
    array_elements: Annotated[
        Annotated[int, Meta(ge=100, le=100_000)], help_text("Elements of an array.")
    ] = 10_000
    depth: Annotated[Annotated[int, Meta(ge=8, le=64)], help_text("Levels of nesting.")] = 32
    batch: Annotated[Count, help_text("Operations in a batch.")] = 50
    page: Annotated[Count, help_text("Default number of items on a page.")] = 20
    max_page: Annotated[Count, help_text("Maximum number of items on a page.")] = 100
    concurrent: Annotated[Count, help_text("Concurrent executions of one caller.")] = 64


class QuotaConfig(Section, frozen=True):
    """A quota of each caller: a warning, then an approval, then rejection."""

    metric: Annotated[QuotaMetric, help_text("What is counted.")]
    warn: Annotated[Positive, help_text("Responses carry a warning from this value.")]
    pause: Annotated[Positive, help_text("An operator must approve to continue above this value.")]
    hard_stop: Annotated[Positive | None, help_text("Calls above this value are rejected.")] = None


class ApiLimit(Section, frozen=True):
    """A rate limit of an upstream API. Interlock does not send calls that the API would reject."""

    limit: Annotated[Count, help_text("Maximum number of calls in the window.")]
    scope: Annotated[
        Literal["global", "endpoint", "category"], help_text("Which calls are counted together.")
    ] = "global"
    server: Annotated[ServerKey | None, help_text("The server. Default: all servers together.")] = (
        None
    )
    endpoint: Annotated[Glob | None, help_text("A glob of operations, for scope endpoint.")] = None
    category: Annotated[CategoryName | None, help_text("The category, for scope category.")] = None
    window: Annotated[Literal["second", "minute", "hour", "day"], help_text("The time window.")] = (
        "minute"
    )
    cost: Annotated[
        Annotated[float, Meta(ge=0)], help_text("The cost of one call, for cost quotas.")
    ] = 0.0


class AgentSafety(Section, frozen=True):
    """Safety settings that differ for some agents."""

    max_steps: Annotated[Count | None, help_text("Default: `safety.max_steps`.")] = None
    tolerance: Annotated[Tolerance | None, help_text("Default: `safety.tolerance`.")] = None
    deny: Annotated[list[Glob] | None, help_text("Replaces `safety.deny`.")] = None
    requires_approval: Annotated[
        list[Glob] | None, help_text("Replaces `safety.requires_approval`.")
    ] = None
    auto_approve: Annotated[list[Glob] | None, help_text("Replaces `safety.auto_approve`.")] = None


class SafetyConfig(Section, frozen=True):
    """The execution safety loop."""

    mode: Annotated[
        SafetyMode,
        help_text(
            "enforcing rejects steps, monitoring reports what it would reject, logging only "
            "records, disabled does nothing."
        ),
    ] = "disabled"
    max_steps: Annotated[
        Count, help_text("After this many steps an operator must approve to continue.")
    ] = 50
    tolerance: Annotated[Tolerance, help_text("The risk up to which steps need no approval.")] = (
        "moderate"
    )
    tolerance_relaxes_confirm: Annotated[
        bool, help_text("Let aggressive tolerance skip confirmations.")
    ] = False
    deny: Annotated[list[Glob], help_text("Actions that are always rejected.")] = field(
        default_factory=lambda: ["drop_*", "delete_all*", "rm -rf*", "*_production*"]
    )
    requires_approval: Annotated[list[Glob], help_text("Actions that need an approval.")] = field(
        default_factory=lambda: ["delete_*", "*force*", "deploy_*", "git push*"]
    )
    auto_approve: Annotated[list[Glob], help_text("Actions that need no approval.")] = field(
        default_factory=lambda: ["read_*", "list_*", "get_*", "search_*"]
    )
    stages: Annotated[
        list[Annotated[int, Meta(ge=1, le=5)]], help_text("The enabled stages of the evaluation.")
    ] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    report_holds: Annotated[
        Duration, help_text("How long a reported step may be executed after the report.")
    ] = 60.0
    agents: Annotated[dict[Glob, AgentSafety], help_text("Overrides by glob of agents.")] = field(
        default_factory=dict
    )
    challenge: Annotated[Duration, help_text("How long a verification code is valid.")] = 300.0
    attempts: Annotated[
        Count, help_text("Maximum number of invalid codes in `attempts_within`.")
    ] = 10
    attempts_within: Annotated[Duration, help_text("The time window of `attempts`.")] = 60.0
    lockout: Annotated[bool, help_text("Double the wait after each further invalid code.")] = True
    repeat_raises_at: Annotated[
        Count, help_text("After this many repetitions of one action its risk score rises.")
    ] = 50


class ChannelConfig(Section, frozen=True):
    """A channel that shows verification codes to people and not to models."""

    kind: Annotated[
        Literal["terminal", "page", "desktop", "command"],
        help_text(
            "`interlock operator`, the approval page, a desktop notification, or your command."
        ),
    ]
    command: Annotated[
        list[Reference],
        help_text("A program with arguments. It reads the code from standard input."),
    ] = field(default_factory=list)


class ExecutionsConfig(Section, frozen=True):
    """Executions: operations that continue after their request was answered."""

    RENAMED: ClassVar[Mapping[str, str]] = {"most": "max_stored"}

    keep: Annotated[Duration, help_text("How long an ended execution is stored.")] = 7 * 86_400.0
    max_stored: Annotated[Count, help_text("Maximum number of stored executions.")] = 10_000
    survive_session: Annotated[
        bool, help_text("Continue executions when the session that started them ends.")
    ] = False


class SearchConfig(Section, frozen=True):
    """Search for operations."""

    embeddings: Annotated[
        Literal["auto", "off"],
        help_text("auto uses embeddings if interlock[embeddings] is installed."),
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
        help_text(
            "The view of clients that request none: plain, aql (five endpoints), aql-single (one), "
            "aql-all, auto (by size), or a profile's name."
        ),
    ] = "plain"
    clients: Annotated[
        list[ClientView], help_text("Views of some clients. The first match counts.")
    ] = field(default_factory=list)
    plain: Annotated[
        Literal["allow", "deny"],
        help_text(
            "deny shows plain tools only to this machine's command line and to parent nodes: "
            "`?view=plain` is rejected, and clients with the plain view get `aql`."
        ),
    ] = "allow"
    profiles: Annotated[
        dict[FamilyName, ProfileConfig],
        help_text("Custom endpoints. `semantic` (discover, query, manage, operate) is built in."),
    ] = field(default_factory=dict)
    prefix: Annotated[
        Annotated[str, Meta(pattern=r"^([a-z][a-z0-9_]{0,17}_)?$", extra={"kind": "prefix"})],
        help_text("A prefix of endpoint names, such as `home_`, for clients of several nodes."),
    ] = ""
    operations: Annotated[
        dict[Glob, OperationConfig],
        help_text("Settings by glob of canonical tool names. The first match counts."),
    ] = field(default_factory=dict)
    trust: Annotated[dict[ServerKey, TrustName], help_text("The trust level of each server.")] = (
        field(default_factory=dict)
    )
    aliases: Annotated[
        bool, help_text("Accept parameter names in the spelling of the server, too.")
    ] = True
    structured_content: Annotated[
        bool, help_text("Also send responses as structured content. Doubles the tokens.")
    ] = True
    is_error: Annotated[
        Literal["aql", "mcp"],
        help_text("mcp: every failure sets isError. aql: only INTERNAL_ERROR and unknown codes."),
    ] = "mcp"
    batch_confirmation: Annotated[
        Literal["halt", "skip"], help_text("What a batch does at an operation that needs approval.")
    ] = "halt"
    safety_only: Annotated[bool, help_text("Serve only the operations of the safety loop.")] = False
    notes: Annotated[bool, help_text("Offer the note operations.")] = True
    slow_ms: Annotated[Count, help_text("Responses that take longer carry a warning.")] = 5_000
    auto_tokens: Annotated[
        Count,
        help_text(
            "The view `auto` shows operations if the plain tools have at least this many tokens, "
            "as `interlock tools` estimates them."
        ),
    ] = AUTO_TOKENS
    limits: AqlLimits = field(default_factory=AqlLimits)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    channels: Annotated[list[ChannelConfig], help_text("Where verification codes are shown.")] = (
        field(default_factory=lambda: [ChannelConfig(kind="terminal"), ChannelConfig(kind="page")])
    )
    executions: ExecutionsConfig = field(default_factory=ExecutionsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    quotas: Annotated[list[QuotaConfig], help_text("Quotas of each caller.")] = field(
        default_factory=list
    )
    api_limits: Annotated[list[ApiLimit], help_text("Rate limits of upstream APIs.")] = field(
        default_factory=list
    )
