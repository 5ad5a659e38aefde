"""What a node is told about trust: who may come, who may do what, what waits for a human, how much
is too much, and what is kept on record."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from interlock.core.config.section import (
    Count,
    Duration,
    Glob,
    Reference,
    SecretReference,
    Section,
    Text,
    kind,
    says,
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
    """A bearer token that a caller may present."""

    name: Annotated[Text, says("Who presents this token; shown in the journal.")]
    token: Annotated[
        SecretReference, says("A reference to the secret: ${env:NAME} or ${file:path}.")
    ]
    may: Annotated[
        list[Permission],
        says(
            "What it is for: to call (the default), to take part in topics and no more, to "
            "register a subserver, to see approvals."
        ),
    ] = field(default_factory=lambda: ["call"])
    roles: Annotated[list[Text], says("Roles that rules of the policy speak of.")] = field(
        default_factory=list
    )
    scopes: Annotated[
        list[Scope] | None,
        says("The most it may do, such as read:* or write:github.*. Default: no limit."),
    ] = None


class IssuerConfig(Section, frozen=True):
    """Somebody whose signed tokens (JWT) are believed."""

    issuer: Annotated[Text, says("The `iss` claim, exactly as the issuer writes it.")]
    audience: Annotated[
        list[Text], says("Accepted `aud` claims. Default: this node's own resource name.")
    ] = field(default_factory=list)
    jwks_url: Annotated[
        Annotated[str, kind("url")] | None,
        says("Where its public keys are. Default: what its own metadata says."),
    ] = None
    jwks_file: Annotated[Text | None, says("A file with its public keys (JWKS), instead.")] = None
    algorithms: Annotated[list[Algorithm], says("The only signature algorithms accepted.")] = field(
        default_factory=lambda: ["RS256", "ES256", "EdDSA"]
    )
    name_claim: Annotated[Text, says("The claim that names the caller.")] = "sub"
    roles_claim: Annotated[Text, says("The claim with its roles.")] = "roles"
    prefix: Annotated[str, says("Put in front of its callers' names, to tell issuers apart.")] = ""
    scopes: Annotated[
        dict[Text, list[Scope]],
        says("What the issuer's own scopes mean here; read, write and admin mean themselves."),
    ] = field(default_factory=dict)
    may: Annotated[list[Permission], says("What its tokens are for.")] = field(
        default_factory=lambda: ["call"]
    )


class IntrospectionConfig(Section, frozen=True):
    """Somebody who is asked about tokens that say nothing by themselves (RFC 7662)."""

    url: Annotated[Annotated[str, kind("url")], says("The introspection endpoint.")]
    client_id: Annotated[Annotated[Reference, Meta(min_length=1)], says("This node's client id.")]
    client_secret: Annotated[SecretReference, says("Its secret, by reference: ${env:NAME}.")]
    audience: Annotated[
        list[Text], says("Accepted `aud` members. Default: this node's own resource name.")
    ] = field(default_factory=list)
    prefix: Annotated[str, says("Put in front of its callers' names.")] = ""
    may: Annotated[list[Permission], says("What its tokens are for.")] = field(
        default_factory=lambda: ["call"]
    )

    def __repr__(self) -> str:
        return f"IntrospectionConfig({self.url})"


class CertificateConfig(Section, frozen=True):
    """A caller who shows a client certificate that `tls.client_ca` signed."""

    name: Annotated[Text, says("Who shows it; the caller's name here.")]
    san: Annotated[Text, says("The name in it (DNS, URI or mail), exactly or *.example.com.")]
    may: Annotated[list[Permission], says("What it is for.")] = field(
        default_factory=lambda: ["call"]
    )
    roles: Annotated[list[Text], says("Its roles.")] = field(default_factory=list)
    scopes: Annotated[list[Scope] | None, says("The most it may do. Default: no limit.")] = None


class IdentityConfig(Section, frozen=True):
    """Who may come, beside those with a token of the config or of `interlock token`."""

    resource: Annotated[
        Annotated[str, kind("url")] | None,
        says("This node's public address, by which tokens name it. Default: where it listens."),
    ] = None
    issuers: Annotated[list[IssuerConfig], says("Whose signed tokens are believed.")] = field(
        default_factory=list
    )
    introspection: Annotated[
        list[IntrospectionConfig], says("Who is asked about opaque tokens.")
    ] = field(default_factory=list)
    certificates: Annotated[
        list[CertificateConfig], says("Callers known by their client certificate.")
    ] = field(default_factory=list)
    local_roles: Annotated[
        list[Text], says("Roles of this machine's own user, who needs no token.")
    ] = field(default_factory=list)
    local_scopes: Annotated[
        list[Scope] | None, says("The most this machine's own user may do. Default: no limit.")
    ] = None
    revocation_seconds: Annotated[
        Duration, says("A revoked token is refused, everywhere, within this time.")
    ] = 1.0


class RuleConfig(Section, frozen=True):
    """One rule of the policy. Every key that is there must fit; lists fit by any of theirs."""

    name: Annotated[Text, says("What the rule is called, where it decided.")]
    then: Annotated[Action, says("What happens: allow, confirm, verify or deny.")]
    callers: Annotated[list[Glob], says("Globs of callers' names.")] = field(default_factory=list)
    roles: Annotated[list[Text], says("Roles, of which the caller has one.")] = field(
        default_factory=list
    )
    scopes: Annotated[list[Text], says("Scopes, of which the caller's token has one.")] = field(
        default_factory=list
    )
    tools: Annotated[list[Glob], says("Globs of canonical tool names, such as github.*.")] = field(
        default_factory=list
    )
    effects: Annotated[list[EffectName], says("What the tool does to the world.")] = field(
        default_factory=list
    )
    annotations: Annotated[
        dict[str, Any],
        says("Members of the tool's annotations or capability, with the values they must have."),
    ] = field(default_factory=dict)
    kinds: Annotated[
        list[Text],
        says(
            "Kinds of requests as patterns, such as mcp/request:resources/*. Default: tool calls."
        ),
    ] = field(default_factory=list)
    when: Annotated[
        Text | None,
        says("A CEL expression over args, tool, caller and effect that must be true."),
    ] = None
    reason: Annotated[str, says("Why: shown to whoever is refused, and to whoever confirms.")] = ""

    def selectors(self) -> dict[str, Any]:
        """What must fit, by key, in the order of the fields. Empty: it fits every tool call."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value
            for name, value in said.items()
            if name not in _NO_SELECTORS and value not in _LEFT_OUT
        }


_NO_SELECTORS: Final = frozenset({"name", "then", "reason"})
_LEFT_OUT: Final[tuple[Any, ...]] = (None, [], {})


class LearnedRule(Section, frozen=True):
    """A rule that a human accepted. It answers what would wait for a confirmation, and nothing
    else: never what needs a verification."""

    name: Annotated[Text, says("What it is called in the journal; `automation revert` takes it.")]
    then: Annotated[Literal["allow", "deny"], says("What becomes of a call that it fits.")]
    tools: Annotated[list[Text], says("Tools by their whole names; no globs.")]
    callers: Annotated[list[Text], says("Callers by name. Default: all.")] = field(
        default_factory=list
    )
    when: Annotated[Text | None, says("A condition (CEL) on the call. Default: none.")] = None
    open: Annotated[
        list[Text],
        says(
            "Arguments that may be any text. An argument that is neither named here nor in `when` "
            "is not let through."
        ),
    ] = field(default_factory=list)
    irreversible: Annotated[bool, says("Whether it also answers for what cannot be undone.")] = (
        False
    )
    reason: Annotated[str, says("What it is for.")] = ""
    evidence: Annotated[str, says("The decisions that it was made from, in words.")] = ""
    accepted: Annotated[str, says("When it was accepted.")] = ""


class PolicyConfig(Section, frozen=True):
    """Who may do what. Of all rules that fit, the most restrictive decides."""

    default: Annotated[
        Literal["safe", "allow", "deny"],
        says(
            "When no rule fits. safe: what cannot be undone is confirmed, all else allowed; allow: "
            "everything; deny: nothing but lists."
        ),
    ] = "safe"
    rules: Annotated[list[RuleConfig], says("The rules, in any order.")] = field(
        default_factory=list
    )
    learned: Annotated[
        list[LearnedRule],
        says("Rules accepted from decisions of the past: they answer what would be confirmed."),
    ] = field(default_factory=list)


class AnchorConfig(Section, frozen=True):
    """Somebody whose proofs let a call through: a public key, or a secret shared with a service."""

    name: Annotated[Text, says("Who that is; shown in the journal.")]
    kind: Annotated[
        AnchorKind,
        says("operator: a human's key; policy_engine: signs nonces; service: issues tokens."),
    ] = "operator"
    key: Annotated[
        Text | None, says("The file with the public key (PEM or JWK), Ed25519 or P-256.")
    ] = None
    secret: Annotated[
        SecretReference | None, says("For a service: the secret its tokens are signed with.")
    ] = None
    tools: Annotated[list[Glob], says("Globs of tools it may confirm. Default: all.")] = field(
        default_factory=list
    )
    caller: Annotated[
        Text | None, says("Which caller that is, if it is one: nobody confirms its own calls.")
    ] = None

    def __repr__(self) -> str:
        return f"AnchorConfig({self.name})"


class ApprovalsConfig(Section, frozen=True):
    """Calls that wait for a human."""

    expiry: Annotated[Duration, says("How long a call waits for its proof.")] = 300.0
    keep: Annotated[Duration, says("How long what became of it is kept for the one who asked.")] = (
        3600.0
    )
    url: Annotated[
        Annotated[str, kind("url")] | None,
        says("The address under which people reach this node's approval page."),
    ] = None
    anchors: Annotated[list[AnchorConfig], says("Whose proofs count.")] = field(
        default_factory=list
    )
    enrolled: Annotated[
        bool, says("Whether keys and passkeys enrolled with `interlock keys` count as well.")
    ] = True
    recovery_delay: Annotated[
        Duration | None,
        says(
            "Operators who lost all keys are enrolled again (`interlock keys recover`) after this "
            "time, unless an operator refuses. null: only root can recover."
        ),
    ] = 86_400.0
    most: Annotated[Count, says("The most calls that wait at once.")] = 1_000
    most_per_caller: Annotated[Count, says("The most calls of one caller that wait.")] = 50


class BudgetConfig(Section, frozen=True):
    """How much may be called. Without a number there is no limit."""

    calls_per_minute: Annotated[Count | None, says("The most calls within any minute.")] = None
    mutable_calls: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        says("The most calls, in one session, of tools that change something."),
    ] = None
    cost_units: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        says("The most units in one session: a metered call is 1, an expensive one 10."),
    ] = None


class CallerBudget(BudgetConfig, frozen=True):
    """How much some callers may call."""

    callers: Annotated[
        list[Glob], says("Globs of callers' names; each has the budget alone. Default: all.")
    ] = field(default_factory=list)


class BudgetsConfig(Section, frozen=True):
    """How much is too much. A registered subserver's budget is under `subservers`."""

    session: Annotated[BudgetConfig | None, says("For each MCP session.")] = None
    callers: Annotated[list[CallerBudget], says("For each caller; the first that fits.")] = field(
        default_factory=list
    )


class PinsConfig(Section, frozen=True):
    """Tool definitions that must not change behind a human's back."""

    mode: Annotated[
        PinMode,
        says(
            "approved: a tool is pinned once a human approved a call of it or accepted it; "
            "first_seen: when it is first listed; off: never."
        ),
    ] = "approved"


class JournalConfig(Section, frozen=True):
    """The durable record of what happened."""

    enabled: Annotated[bool, says("Whether calls are recorded.")] = True
    path: Annotated[
        Text | None, says("The SQLite file. Default: journal.db in the state folder.")
    ] = None
    max_rows: Annotated[Count, says("Entries kept before the oldest go.")] = 1_000_000
    durable: Annotated[
        Literal["mutating", "never"],
        says("Which calls are on disk before they leave: those that change something, or none."),
    ] = "mutating"
    wait: Annotated[
        Duration,
        says("How long a call that changes something waits for the disk before it is refused."),
    ] = 10.0
    arguments: Annotated[
        Literal["digest", "none"],
        says(
            "What is recorded of the arguments of held and irreversible calls: "
            "their SHA-256 digest, or nothing."
        ),
    ] = "digest"
    max_age: Annotated[Duration | None, says("How long entries are kept, at most.")] = None
    archive: Annotated[
        bool, says("Whether entries that go are written to a compressed file beside it first.")
    ] = False
