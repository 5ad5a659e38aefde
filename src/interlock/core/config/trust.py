"""Config sections about trust: identity, policy, approvals, budgets, pins and the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, field

from interlock.core.config.section import (
    Count,
    Duration,
    Glob,
    Reference,
    SecretReference,
    Section,
    Text,
    help_text,
    kind,
)

EffectName = Literal["read_only", "additive", "mutating", "irreversible"]
UnannotatedName = Literal["infer", "confirm", "allow"]
Permission = Literal["call", "register", "approve", "join"]
Action = Literal["allow", "confirm", "verify", "deny"]
Algorithm = Literal["RS256", "ES256", "EdDSA"]
AnchorKind = Literal["operator", "policy_engine", "service"]
PinMode = Literal["approved", "first_seen", "off"]
ScopeLevel = Literal["read", "write", "admin"]

SCOPE_PATTERN = r"^(read|write|admin)(:[A-Za-z0-9_.*?-]+)?$"
Scope = Annotated[str, Meta(pattern=SCOPE_PATTERN, extra={"kind": "scope"})]


class TokenConfig(Section, frozen=True):
    """A bearer token of a caller."""

    name: Annotated[Text, help_text("Name of the caller, shown in the journal.")]
    token: Annotated[
        SecretReference, help_text("Reference to the secret: ${env:NAME} or ${file:path}.")
    ]
    may: Annotated[
        list[Permission],
        help_text(
            "Permissions: call (the default), join (only take part in topics), register (a "
            "subserver), approve (see approvals)."
        ),
    ] = field(default_factory=lambda: ["call"])
    roles: Annotated[list[Text], help_text("Roles for rules of the policy.")] = field(
        default_factory=list
    )
    scopes: Annotated[
        list[Scope] | None,
        help_text("Maximum rights, such as read:* or write:github.*. Default: no limit."),
    ] = None


class IssuerConfig(Section, frozen=True):
    """An issuer of signed tokens (JWT)."""

    issuer: Annotated[Text, help_text("The `iss` claim, exactly as the issuer writes it.")]
    audience: Annotated[
        list[Text], help_text("Accepted `aud` claims. Default: the resource name of this node.")
    ] = field(default_factory=list)
    jwks_url: Annotated[
        Annotated[str, kind("url")] | None,
        help_text("URL of its public keys. Default: from its metadata."),
    ] = None
    jwks_file: Annotated[
        Text | None, help_text("File with its public keys (JWKS), instead of a URL.")
    ] = None
    algorithms: Annotated[list[Algorithm], help_text("Accepted signature algorithms.")] = field(
        default_factory=lambda: ["RS256", "ES256", "EdDSA"]
    )
    name_claim: Annotated[Text, help_text("Claim with the name of the caller.")] = "sub"
    roles_claim: Annotated[Text, help_text("Claim with the roles of the caller.")] = "roles"
    prefix: Annotated[str, help_text("Prefix of its callers' names, to distinguish issuers.")] = ""
    scopes: Annotated[
        dict[Text, list[Scope]],
        help_text("Mapping of the issuer's scopes. read, write and admin need no mapping."),
    ] = field(default_factory=dict)
    may: Annotated[list[Permission], help_text("Permissions of its tokens.")] = field(
        default_factory=lambda: ["call"]
    )


class IntrospectionConfig(Section, frozen=True):
    """A server that validates opaque tokens (RFC 7662)."""

    url: Annotated[Annotated[str, kind("url")], help_text("URL of the introspection endpoint.")]
    client_id: Annotated[
        Annotated[Reference, Meta(min_length=1)], help_text("Client id of this node.")
    ]
    client_secret: Annotated[
        SecretReference, help_text("Client secret, by reference: ${env:NAME}.")
    ]
    audience: Annotated[
        list[Text], help_text("Accepted `aud` members. Default: the resource name of this node.")
    ] = field(default_factory=list)
    prefix: Annotated[str, help_text("Prefix of its callers' names.")] = ""
    may: Annotated[list[Permission], help_text("Permissions of its tokens.")] = field(
        default_factory=lambda: ["call"]
    )

    def __repr__(self) -> str:
        return f"IntrospectionConfig({self.url})"


class CertificateConfig(Section, frozen=True):
    """A caller with a client certificate that `tls.client_ca` signed."""

    name: Annotated[Text, help_text("Name of the caller.")]
    san: Annotated[
        Text, help_text("Name in the certificate (DNS, URI or mail), exact or *.example.com.")
    ]
    may: Annotated[list[Permission], help_text("Permissions of the caller.")] = field(
        default_factory=lambda: ["call"]
    )
    roles: Annotated[list[Text], help_text("Roles of the caller.")] = field(default_factory=list)
    scopes: Annotated[list[Scope] | None, help_text("Maximum rights. Default: no limit.")] = None


class IdentityConfig(Section, frozen=True):
    """Callers, in addition to those with a token of the config or of `interlock token`."""

    resource: Annotated[
        Annotated[str, kind("url")] | None,
        help_text("Public URL of this node, the audience of tokens. Default: the listen address."),
    ] = None
    issuers: Annotated[list[IssuerConfig], help_text("Issuers of signed tokens.")] = field(
        default_factory=list
    )
    introspection: Annotated[
        list[IntrospectionConfig], help_text("Servers that validate opaque tokens.")
    ] = field(default_factory=list)
    certificates: Annotated[
        list[CertificateConfig], help_text("Callers with client certificates.")
    ] = field(default_factory=list)
    local_roles: Annotated[
        list[Text], help_text("Roles of the user of this machine, who needs no token.")
    ] = field(default_factory=list)
    local_scopes: Annotated[
        list[Scope] | None,
        help_text("Maximum rights of the user of this machine. Default: no limit."),
    ] = None
    revocation_seconds: Annotated[
        Duration, help_text("Maximum time until a revoked token is rejected everywhere.")
    ] = 1.0


class RuleConfig(Section, frozen=True):
    """A rule of the policy. All of its keys must match; a list matches by any of its items."""

    name: Annotated[Text, help_text("Name of the rule, shown with its decisions.")]
    then: Annotated[Action, help_text("Decision: allow, confirm, verify or deny.")]
    callers: Annotated[list[Glob], help_text("Globs of callers' names.")] = field(
        default_factory=list
    )
    roles: Annotated[list[Text], help_text("Roles. The caller must have one of them.")] = field(
        default_factory=list
    )
    scopes: Annotated[
        list[Text], help_text("Scopes. The caller's token must have one of them.")
    ] = field(default_factory=list)
    tools: Annotated[list[Glob], help_text("Globs of canonical tool names, such as github.*.")] = (
        field(default_factory=list)
    )
    effects: Annotated[list[EffectName], help_text("Effects of tools.")] = field(
        default_factory=list
    )
    annotations: Annotated[
        dict[str, Any],
        help_text("Required values of members of the tool's annotations or capability."),
    ] = field(default_factory=dict)
    kinds: Annotated[
        list[Text],
        help_text(
            "Kinds of requests as patterns, such as mcp/request:resources/*. Default: tool calls."
        ),
    ] = field(default_factory=list)
    when: Annotated[
        Text | None,
        help_text("A CEL expression over args, tool, caller and effect that must be true."),
    ] = None
    reason: Annotated[str, help_text("Reason, shown to rejected callers and to operators.")] = ""

    def selectors(self) -> dict[str, Any]:
        """Return the conditions by key. Empty: the rule matches every tool call."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value
            for name, value in values.items()
            if name not in _NO_SELECTORS and value not in _LEFT_OUT
        }


_NO_SELECTORS: Final = frozenset({"name", "then", "reason"})
_LEFT_OUT: Final[tuple[Any, ...]] = (None, [], {})


class LearnedRule(Section, frozen=True):
    """A rule that an operator accepted. It decides calls that would need a confirmation, but never
    calls that need a verification."""

    name: Annotated[Text, help_text("Name in the journal and for `automation revert`.")]
    then: Annotated[Literal["allow", "deny"], help_text("Decision about matching calls.")]
    tools: Annotated[list[Text], help_text("Full names of tools; no globs.")]
    callers: Annotated[list[Text], help_text("Names of callers. Default: all.")] = field(
        default_factory=list
    )
    when: Annotated[Text | None, help_text("Condition (CEL) of the call. Default: none.")] = None
    open: Annotated[
        list[Text],
        help_text(
            "Arguments that may have any text. Calls with arguments that are neither named here "
            "nor in `when` do not match."
        ),
    ] = field(default_factory=list)
    irreversible: Annotated[bool, help_text("Whether it also decides irreversible calls.")] = False
    reason: Annotated[str, help_text("Purpose of the rule.")] = ""
    evidence: Annotated[str, help_text("The decisions that it was derived from.")] = ""
    accepted: Annotated[str, help_text("Time of its acceptance.")] = ""


class PolicyConfig(Section, frozen=True):
    """The policy. Of all matching rules, the most restrictive one decides."""

    default: Annotated[
        Literal["safe", "allow", "deny"],
        help_text(
            "Decision when no rule matches. safe: irreversible calls need a confirmation, others "
            "are allowed. allow: all. deny: only lists are allowed."
        ),
    ] = "safe"
    rules: Annotated[list[RuleConfig], help_text("The rules, in any order.")] = field(
        default_factory=list
    )
    learned: Annotated[
        list[LearnedRule],
        help_text(
            "Rules that operators accepted. They decide calls that would need a confirmation."
        ),
    ] = field(default_factory=list)


class AnchorConfig(Section, frozen=True):
    """A trust anchor whose proofs approve calls: a public key, or a secret of a service."""

    name: Annotated[Text, help_text("Name of the anchor, shown in the journal.")]
    kind: Annotated[
        AnchorKind,
        help_text("operator: a person's key. policy_engine: signs nonces. service: issues tokens."),
    ] = "operator"
    key: Annotated[
        Text | None, help_text("File with the public key (PEM or JWK), Ed25519 or P-256.")
    ] = None
    secret: Annotated[
        SecretReference | None, help_text("For a service: the secret that signs its tokens.")
    ] = None
    tools: Annotated[list[Glob], help_text("Globs of tools that it may approve. Default: all.")] = (
        field(default_factory=list)
    )
    caller: Annotated[
        Text | None,
        help_text("Its name as a caller, if it is one. Anchors cannot approve their own calls."),
    ] = None

    def __repr__(self) -> str:
        return f"AnchorConfig({self.name})"


class ApprovalsConfig(Section, frozen=True):
    """Approvals of pending calls."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "most": "max_pending", "most_per_caller": "max_pending_per_caller",
    }  # fmt: skip

    expiry: Annotated[Duration, help_text("Time after which a pending call expires.")] = 300.0
    keep: Annotated[Duration, help_text("How long the outcome is kept for the caller.")] = 3600.0
    url: Annotated[
        Annotated[str, kind("url")] | None,
        help_text("URL of the approval page of this node for operators."),
    ] = None
    anchors: Annotated[list[AnchorConfig], help_text("Trust anchors.")] = field(
        default_factory=list
    )
    enrolled: Annotated[
        bool,
        help_text("Whether keys and passkeys enrolled with `interlock keys` are accepted, too."),
    ] = True
    recovery_delay: Annotated[
        Duration | None,
        help_text(
            "Delay of a recovery of operators who lost all keys (`interlock keys recover`), unless "
            "an operator rejects it. null: only root can recover."
        ),
    ] = 86_400.0
    max_pending: Annotated[Count, help_text("Maximum number of pending calls.")] = 1_000
    max_pending_per_caller: Annotated[
        Count, help_text("Maximum number of pending calls of one caller.")
    ] = 50


class BudgetConfig(Section, frozen=True):
    """Limits of calls. Without a number there is no limit."""

    calls_per_minute: Annotated[Count | None, help_text("Maximum number of calls per minute.")] = (
        None
    )
    mutable_calls: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        help_text("Maximum number of calls per session that change something."),
    ] = None
    cost_units: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        help_text("Maximum units per session: a metered call takes 1, an expensive one 10."),
    ] = None


class CallerBudget(BudgetConfig, frozen=True):
    """Limits of some callers."""

    callers: Annotated[
        list[Glob], help_text("Globs of callers. Each of them has the full budget. Default: all.")
    ] = field(default_factory=list)


class BudgetsConfig(Section, frozen=True):
    """Budgets of calls. Those of subservers are under `subservers`."""

    session: Annotated[BudgetConfig | None, help_text("Budget of each MCP session.")] = None
    callers: Annotated[
        list[CallerBudget], help_text("Budgets of callers. The first match counts.")
    ] = field(default_factory=list)


class PinsConfig(Section, frozen=True):
    """Pins of tool definitions: a changed tool needs to be accepted again."""

    mode: Annotated[
        PinMode,
        help_text(
            "approved: a tool is pinned when a call of it is approved or the tool is accepted. "
            "first_seen: when it is first listed. off: never."
        ),
    ] = "approved"


class JournalConfig(Section, frozen=True):
    """The audit log."""

    enabled: Annotated[bool, help_text("Whether calls are recorded.")] = True
    path: Annotated[
        Text | None, help_text("SQLite file. Default: journal.db in the state folder.")
    ] = None
    max_rows: Annotated[Count, help_text("Number of entries to keep.")] = 1_000_000
    durable: Annotated[
        Literal["mutating", "never"],
        help_text(
            "Calls that are on disk before they are sent: those that change something, or none."
        ),
    ] = "mutating"
    wait: Annotated[
        Duration,
        help_text(
            "How long a call that changes something waits for the disk before it is rejected."
        ),
    ] = 10.0
    arguments: Annotated[
        Literal["digest", "none"],
        help_text(
            "What is recorded of the arguments of pending and irreversible calls: "
            "their SHA-256 digest, or nothing."
        ),
    ] = "digest"
    max_age: Annotated[Duration | None, help_text("Maximum age of entries.")] = None
    archive: Annotated[
        bool, help_text("Whether removed entries are first written to a compressed file.")
    ] = False
