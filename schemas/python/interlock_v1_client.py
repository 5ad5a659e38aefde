"""A typed client of Interlock 1.0.0. Longer than 500 lines because it is generated."""
# Generated from proto/interlock/v1/api.proto by interlock-contracts 1.
# Edit that, not this.
# sha256:69cd3dfcf25134cc183bd4c64ad190b21dbba69ee8bdf7200e63598acf3f3e74

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec

_JSON = "application/json"
_EVENTS = "text/event-stream"

ApprovalState = Literal[
    "pending",
    "approved",
    "dispatching",
    "done",
    "refused",
    "expired",
    "void",
    "lost",
    "passed_on",
]
"""What became of an approval."""
Circuit = Literal["closed", "open", "half_open"]
"""Whether calls are let through to an upstream that failed."""
ContractProtocol = Literal["json-schema", "protobuf", "openapi", "mcp-tool"]
"""In which language a contract is written."""
DriverState = Literal["running", "ready", "unverified", "unauthed", "failing", "refused"]
"""Whether calls are sent to a driver."""
JournalState = Literal["ok", "failing", "slow"]
"""Whether the journal can be written."""
ParentState = Literal[
    "idle",
    "dialling",
    "introducing",
    "registering",
    "registered",
    "waiting",
    "leaving",
    "ended",
]
"""Where a node stands with its parent."""
TreeRole = Literal["root", "aggregator", "gateway", "leaf"]
"""What somebody is in the tree."""
TreeState = Literal["ready", "degraded", "connecting", "failed"]
"""How somebody in the tree fares."""
UpstreamState = Literal["connecting", "ready", "degraded", "failed"]
"""Whether an upstream can be called."""


class Admission(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An operator's answer about a pending enrolment: a proof, or a refusal."""

    id: str
    """The pending enrolment."""
    entry: str | None = None
    """The entry that was signed."""
    proof: str | None = None
    """The proof."""
    refuse: bool | None = None
    """Whether it is refused instead, which takes no proof."""

    def __repr__(self) -> str:
        return "Admission(…)"


class Admitted(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a pending enrolment."""

    id: str
    """The pending enrolment."""
    state: str
    """`enrolled` or `refused`."""
    name: str | None = None
    """The operator, if enrolled."""


class Approval(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call that waits for a human, or did."""

    id: str
    """By what it is known; nobody guesses it."""
    state: ApprovalState
    """What became of it."""
    tool: str
    """The canonical name of the tool."""
    server: str
    """The upstream that would be called."""
    route: list[str]
    """The way down the tree."""
    arguments: Any
    """What it would be called with, declared secrets masked. Null: not kept, or too long for a
    list.
    """
    arguments_text: str
    """The same as text, exactly as it came, for people to read."""
    arguments_cut: bool | None = None
    """Only in a list: whether the arguments were cut."""
    capability: dict[str, Any]
    """The tool's capability annotation."""
    effect: str
    """What the tool does to the world: `read_only`, `additive`, `mutating` or `irreversible`."""
    description: str
    """What the tool says of itself."""
    caller: ApprovalCaller
    """Who asked."""
    action: str
    """What is wanted of a human: `confirm`, or `verify` with a key or passkey of their own."""
    rule: str
    """The rule that stopped it."""
    reason: str
    """Why."""
    created_at: str
    """When it was stopped (RFC 3339, UTC)."""
    expires_at: str
    """Until when it can be decided (RFC 3339, UTC)."""
    args_sha256: str
    """What a proof is about: a digest of tool, arguments, contract, caller, and what is sent with
    it.
    """
    nonce: str
    """What a policy engine signs."""
    aud: str
    """The id of the node that holds it."""
    note: str
    """Why it was refused, void or lost."""
    url: str | None = None
    """Where people decide it."""
    at: str | None = None
    """The node below that holds it. Missing: this one does."""
    proposal: ApprovalProposal | None = None
    """The proposal in a topic that it was held for."""
    decided_at: str | None = None
    """When it was decided (RFC 3339, UTC). Missing: it is not."""
    by: str | None = None
    """Whose proof decided it."""
    proof: str | None = None
    """Of which kind that was."""
    outcome: str | None = None
    """What became of the call, in the word of the journal."""
    mask: str
    """What stands for a secret in the arguments."""
    now: float
    """The node's clock, in seconds of the Unix clock, as the next ones."""
    created: float
    """When it was stopped."""
    expires: float
    """Until when it can be decided."""
    decided: float
    """When it was decided. 0: it is not."""
    seconds_left: float
    """For how long it can still be decided."""
    seconds_whole: float
    """For how long it could be from the start."""
    contract: str
    """The digest of the tool's definition."""
    policy: str
    """The version of the policy that stopped it."""
    result: dict[str, Any] | None = None
    """To whoever confirmed it: what the tool answered."""
    result_text: str | None = None
    """The same as text, exactly as it came."""
    error: CallTrouble | None = None
    """To whoever confirmed it: why the call failed."""
    meta: dict[str, Any] | None = None
    """What of its `_meta` would be sent with it, declared secrets masked. Missing: nothing, not
    kept, or too long for a list.
    """
    meta_text: str | None = None
    """The same as text, for people to read."""
    masked: list[str]
    """JSON pointers (RFC 6901) into this object: which values are masked."""
    revealed: bool
    """Whether the masked values are shown, to an operator who asked for that."""


class ApprovalCaller(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who asked for a call that waits."""

    name: str
    """By what the node knows it."""
    kind: str
    """How it is known: `local`, `token`, `jwt`, `introspection`, `certificate` or `parent`."""
    above: str
    """On a call that a parent sent: who called there. Empty: nobody."""


class ApprovalList(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All that wait, the oldest first."""

    approvals: list[Approval]
    """Long arguments are cut in a list: nobody decides by this."""


class ApprovalProposal(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The proposal in a topic that a call was held for."""

    topic: str
    """The topic."""
    id: str
    """The id of the proposal."""
    by: str
    """Who made it."""


class BindingStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A contract that a driver serves, or why it does not."""

    contract: str
    """The contract, as `id@major`."""
    tool: str
    """The tool of the driver's server."""
    problems: list[str]
    """Why it is not served."""
    warnings: list[str]
    """What somebody should look at."""


class Block(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Somebody who may do nothing until a human says so."""

    caller: str
    """Who."""
    above: str
    """On a call that a parent sent: who called there. Empty: nobody."""
    element_name: str
    """What the agent calls itself."""
    hint: str
    """What it wanted to do."""
    reason: str
    """Why it was stopped."""
    since: str
    """Since when (RFC 3339, UTC)."""
    challenge: str
    """The challenge by which it can be let go. Empty: there is none."""


class CallTrouble(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a call failed that a human had confirmed."""

    name: str
    """A stable word for programs."""
    message: str
    """A sentence for people."""


class CapabilitiesChanged(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was changed."""

    participant_id: str = msgspec.field(name="participantId")
    """Whose."""
    old_capabilities: list[str] = msgspec.field(name="oldCapabilities")
    """What it could send before."""
    new_capabilities: list[str] = msgspec.field(name="newCapabilities")
    """What it can send now."""
    modified_by: str = msgspec.field(name="modifiedBy")
    """Who changed it."""
    modified_at: str = msgspec.field(name="modifiedAt")
    """When (RFC 3339, UTC)."""


class CapabilityChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is to be changed; at least one pattern."""

    add: list[str] | None = None
    """Patterns that it may send from now on."""
    remove: list[str] | None = None
    """Patterns that it may not send any more."""


class Challenge(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One code, and who waits for it."""

    id: str
    """By what it is known."""
    code: str | None
    """The code. Null: it is not known here any more, or is shown elsewhere only."""
    caller: str
    """Who has to enter it."""
    above: str
    """On a call that a parent sent: who called there. Empty: nobody."""
    element_name: str
    """What the agent calls itself."""
    tier: str
    """How serious it is: `advisory`, `confirm`, `verify` or `danger_zone`."""
    hint: str
    """What it is about."""
    approval: str
    """The approval that is the same question. Empty: it is not written down yet."""
    created_at: str
    """When it was made (RFC 3339, UTC)."""
    seconds_left: float
    """For how long it is open."""

    def __repr__(self) -> str:
        return "Challenge(…)"


class ContractChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One change of a contract."""

    reason: str
    """Its class, such as `REQUIRED_FIELD_ADDED`."""
    path: str
    """Where in the contract."""
    breaking: bool
    """Whether callers would break."""
    message: str
    """The same for people."""


class ContractCommit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One entry of the registry's history."""

    commit: str
    """Its id in the repository."""
    author: str
    """Who."""
    time: str
    """When (ISO 8601, UTC)."""
    reason: str
    """Why."""
    contracts: list[str]
    """What it published: `NAME@VERSION (PROTOCOL)`."""


class ContractDeprecation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A major that will not be supported for ever."""

    name: str
    """The contract."""
    domain: str
    """To what it belongs."""
    major: int
    """Which major."""
    deprecated_at: str
    """Since when (ISO 8601, UTC)."""
    sunset_at: str
    """Until when it is supported (ISO 8601, UTC)."""
    migration_uri: str
    """Where it is said how to go on."""


class ContractDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One version of one contract."""

    name: str
    """What it is called."""
    version: str
    """Its version (SemVer)."""
    domain: str
    """To what it belongs."""
    protocol: ContractProtocol
    """In which language it is written."""
    digest: str
    """The SHA-256, in hex, of the document as canonical JSON; of Protobuf, of its bytes."""
    path: str
    """Where it lies in the repository."""
    provenance: ContractProvenance
    """Where it came from."""
    deprecation: ContractDeprecation | None = None
    """Until when its major is supported. Missing: nobody has deprecated it."""
    schema: Any
    """The document itself. Protobuf is text."""


class ContractList(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The contracts that fit, and how the registry fares."""

    contracts: list[ContractSummary]
    """In the order of their names and versions."""
    registry: RegistryMetrics
    """How the registry fares."""


class ContractLog(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who published what of a contract."""

    name: str
    """What it is called."""
    log: list[ContractCommit]
    """The newest first."""


class ContractProvenance(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a contract came from."""

    source: str
    """A file, or who said it: `proto/agent.proto`, `upstream:files`."""
    generator_version: str
    """What made it of its source."""
    timestamp: str
    """When (ISO 8601, UTC)."""


class ContractStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A contract, what it is called, and who serves it."""

    key: str
    """The contract, as `id@major`."""
    names: list[str]
    """By what it is called."""
    version: str
    """The version that is served."""
    drivers: list[str]
    """The drivers that serve it."""
    problem: str
    """Why it is not offered, or not under every name."""


class ContractSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One version of one contract, without its document."""

    name: str
    """What it is called."""
    version: str
    """Its version (SemVer)."""
    domain: str
    """To what it belongs."""
    protocol: ContractProtocol
    """In which language it is written."""
    digest: str
    """The SHA-256, in hex, of the document as canonical JSON; of Protobuf, of its bytes."""
    path: str
    """Where it lies in the repository."""
    provenance: ContractProvenance
    """Where it came from."""
    deprecation: ContractDeprecation | None = None
    """Until when its major is supported. Missing: nobody has deprecated it."""


class ContractValidation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whether a payload is what a contract asks for."""

    valid: bool
    """Whether it is."""
    name: str
    """By which contract."""
    version: str
    """By which version of it."""
    protocol: ContractProtocol
    """In which language that is written."""
    errors: list[ContractViolation]
    """What is wrong; the first of it."""
    deprecation: ContractDeprecation | None
    """Until when the major of the contract is supported. Null: nobody has deprecated it."""


class ContractViolation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is wrong with a payload."""

    path: str
    """A JSON pointer to the member that is wrong, or missing."""
    message: str
    """What is wrong with it."""


class Decision(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A proof; or, from the node's own user, a refusal without one."""

    proof: str | None = None
    """What somebody signed who may decide."""
    refuse: bool | None = None
    """Without a proof: refuse it."""
    reason: str | None = None
    """Why it is refused."""
    accept_masked: bool | None = None
    """Approve although arguments are masked: they were revealed, or are approved without seeing
    them.
    """

    def __repr__(self) -> str:
        return "Decision(…)"


class DriverStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one driver fares."""

    id: str
    """Its id, that of its folder."""
    version: str
    """Its version. Empty: its file cannot be used."""
    kind: str
    """How its server is run: `binary`, `npm`, `docker` or `remote`. Empty: its file cannot be used.
    """
    state: DriverState
    """Whether calls are sent to it."""
    file: str
    """Where it is declared."""
    problem: str
    """What is wrong with it. Empty: nothing."""
    bindings: list[BindingStatus]
    """The contracts that it serves, or does not."""
    calls: int
    """Calls that it was sent."""
    pid: int | None
    """The process of its server. Null: it has none on this machine, or does not run."""
    revision: str
    """The revision of MCP that was agreed upon with its server, while that runs."""
    egress: list[str]
    """The hosts that its server may reach."""
    warnings: list[str]
    """What somebody should look at."""
    skills: dict[str, list[Any]]
    """Prompts that are blocks of a skill, by the file of the skill."""


class Enrolled(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who was enrolled, or will be."""

    name: str
    """The operator."""
    pending: str | None = None
    """The enrolment is pending under this id: an operator has to confirm it."""


class Enrolment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Somebody who was invited brings a key or a passkey. With neither, it is only asked whose the
    code is.
    """

    code: str
    """The code of `interlock keys enrol`."""
    key: dict[str, Any] | None = None
    """A public key (JWK)."""
    passkey: PasskeyCreation | None = None
    """A passkey that a browser made."""

    def __repr__(self) -> str:
        return "Enrolment(…)"


class Error(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong."""

    error: str
    """A stable word for programs."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] | None = None
    """More for programs, where there is more to say."""


class Execution(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An agent at work, whose calls are watched."""

    id: str
    """By what it is known."""
    caller: str
    """Who."""
    above: str
    """On a call that a parent sent: who called there. Empty: nobody."""
    element_name: str
    """What the agent calls itself."""
    state: str
    """`running`, `completed`, `cancelled` or `failed`."""
    since: str
    """Since when (RFC 3339, UTC)."""
    last_step: str
    """When it last reported a step (RFC 3339, UTC). Empty: not yet."""
    steps: int
    """Steps that it reported."""
    violations: int
    """How often it did what it may not."""


class Health(msgspec.Struct, kw_only=True, omit_defaults=True):
    """That the node answers at all."""

    status: str
    """Always `ok`: a node that is not does not answer."""


class JournalHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the journal fares."""

    state: JournalState
    """Whether it can be written."""
    reason: str
    """Why not, as a sentence. Empty: all is well."""
    pending: int
    """Entries that wait to be written."""
    lost: int
    """Entries that could not be kept."""
    written: int
    """Entries that were written since the start."""
    late: int
    """Calls that were refused since the start because the disk was late."""


class KeySet(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The public keys of the node (JSON Web Key Set)."""

    keys: list[dict[str, Any]]
    """Each is a JWK."""


class NodeStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the node fares."""

    version: str
    """The version of the program."""
    pid: int
    """Its process."""
    url: str | None
    """Where its MCP endpoint is. Null: HTTP is not open."""
    uptime: float
    """Seconds since it was started."""
    upstreams: list[UpstreamStatus]
    """Every upstream, in the order of the config."""
    tools: int
    """Tools that callers see."""
    calls: int
    """Calls since the start."""
    failed: int
    """Those of them that failed."""
    sessions: int
    """Sessions that clients have open."""
    listeners: int
    """Streams on which clients wait for news."""
    under_way: int
    """Calls that are being made now."""
    tasks: int
    """Tasks of the event loop."""
    journal: JournalHealth | None
    """How the journal fares. Null: there is none."""
    parent: ParentStatus | None
    """How it stands with the node that it registers with. Null: there is to be none."""
    held: list[str]
    """Tools that changed since a human accepted them."""
    waiting: int
    """Calls that wait for a human."""
    topics: dict[str, TopicStatus]
    """Topics that are open, by name."""
    problems: list[str]
    """What is wrong with the node's own files, and with those whose tokens it believes."""
    drivers: list[DriverStatus]
    """Drivers of the workspace, also those that cannot be used."""
    contracts: list[ContractStatus]
    """Contracts that drivers serve."""
    changed_contracts: list[ToolChange]
    """Tools of upstreams whose schemas changed lately, those that break their callers first."""
    topics_url: str | None
    """Where its topics are joined. Null: there are none, or HTTP is not open."""
    notifications_dropped: int
    """Notifications of subservers that came faster than they may be passed on."""
    policy: str
    """The version of the policy in force: two nodes with the same rules have the same."""


class Operator(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Somebody who may confirm calls, by one key or passkey."""

    name: str
    """The operator."""
    kind: str
    """`key` or `passkey`."""
    id: str
    """The thumbprint of the key, or the id of the passkey."""


class OperatorList(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The operators of the node, and enrolments that one of them has to confirm."""

    now: float
    """The node's time, in seconds since 1970."""
    operators: list[Operator]
    """Who may confirm calls."""
    pending: list[PendingEnrolment]
    """Who wants to."""


class OperatorSession(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What lets an operator see."""

    session: str
    """Goes into the header `Interlock-Session`."""

    def __repr__(self) -> str:
        return "OperatorSession(…)"


class ParentStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How it stands with the node above."""

    url: str
    """The parent that is tried or registered with."""
    state: ParentState
    """Where it stands with it."""
    since: float
    """Since when, in seconds of the Unix clock."""
    problem: str | None
    """What went wrong last. Null: it is registered."""
    symbol: str
    """The same for programs: `namespace_conflict`, `upstream_unavailable`, …"""
    segment: str
    """The segment asked for, and once registered the one given."""
    session_id: str
    """The session with the parent. Empty: there is none."""
    parent_id: str
    """The id of the parent. Empty: not known yet."""
    tree_id: str
    """The id of the tree. Empty: not known yet."""
    beats: int
    """Heartbeats that were answered in this session."""


class Participant(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A connection to a topic."""

    connection_id: str = msgspec.field(name="connectionId")
    """By what the connection is known."""
    participant_id: str = msgspec.field(name="participantId")
    """By what the participant is known in the topic."""
    capabilities: list[str]
    """The kinds of messages that it may send, as patterns."""
    connected_at: str = msgspec.field(name="connectedAt")
    """When it came (RFC 3339, UTC)."""
    topic: str
    """Where it sits."""
    routing: str
    """What it is sent: `all`, or `directed` for what is addressed to it."""


class ParticipantList(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everybody who sits in a topic."""

    participants: list[Participant]
    """One for each connection."""


class PassedOn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A decision that was passed on to a node below."""

    id: str
    """The id of the approval."""
    state: ApprovalState
    """Always `passed_on`."""
    result: dict[str, Any]
    """What the tool answered."""


class PasskeyCreation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a browser tells of a new passkey; binary members are base64url."""

    client_data: str
    """`clientDataJSON`."""
    authenticator_data: str
    """`authenticatorData`."""
    public_key: str
    """The public key (SubjectPublicKeyInfo, DER)."""
    algorithm: int
    """The COSE number of its algorithm."""


class PendingEnrolment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An enrolment that an operator has to confirm."""

    id: str
    """By what it is admitted or refused."""
    name: str
    """The operator to be."""
    kind: str
    """`key` or `passkey`."""
    key: str
    """The thumbprint of the key, or the id of the passkey."""
    tools: list[str]
    """Globs of tools that it may confirm. Empty: all."""
    caller: str
    """Which caller that is, if it is one."""
    made: float
    """When it was asked for, in seconds since 1970."""
    recovery: bool
    """It counts without an operator's proof after a delay, unless one refuses it."""
    ends: float | None
    """When that is, in seconds since 1970, once it is known."""
    aud: str
    """`aud` of the proof."""
    jti: str
    """`jti` of the proof."""
    args_sha256: str
    """`args_sha256` of the proof."""
    entry: str
    """The entry that is signed: sent back as it is."""


class RegistryMetrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the registry fares, in numbers."""

    schema_count: int
    """How many versions of contracts it has now."""
    drift_violations: int
    """How many types drifted apart in the last run of the schema pipeline."""
    generation_duration: float
    """Seconds that the last run of the schema pipeline took."""
    version: int
    """How many runs were recorded."""
    head: str | None
    """The newest commit. Null: nothing was published yet."""


class ReliesOn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who relies on a tool."""

    callers: list[str]
    """Who called it lately."""
    drivers: list[str]
    """Drivers whose contracts are bound to it."""
    rules: list[str]
    """Rules that were learned for it."""


class ResourceMetadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a client gets a token for this node (RFC 9728)."""

    resource: str
    """The node's public address, as tokens name it."""
    authorization_servers: list[str]
    """Who gives out tokens."""
    scopes_supported: list[str]
    """The scopes that there are."""
    bearer_methods_supported: list[str]
    """How a token is sent."""
    resource_name: str
    """What the node calls itself."""


class Route(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where the name of one tool leads."""

    downstream_session: str
    """The session of the subserver that has it."""
    downstream_name: str
    """What the subserver calls it."""
    capability: dict[str, Any]
    """Its capability annotation."""
    registered_at: str
    """When the subserver registered (RFC 3339, UTC)."""


class SafetyDesk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the safety loop has to show."""

    mode: str
    """What it does: `enforcing`, `monitoring`, `logging` or `disabled`."""
    challenges: list[Challenge]
    """Codes that somebody has to enter."""
    blocks: list[Block]
    """Those who may do nothing."""
    executions: list[Execution]
    """Agents at work."""


class SafetyRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that an operator wants: exactly one of these."""

    renew: str | None = None
    """The id of a challenge whose code is lost: another one is made in its place."""
    blocked: str | None = None
    """The name of somebody who is blocked: a challenge is made by which it can be let go."""
    end: str | None = None
    """The id of an execution that is to end."""


class SessionAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The signed answer of an operator who wants to see what waits."""

    nonce: str
    """The question that is answered."""
    proof: str
    """What was signed."""

    def __repr__(self) -> str:
        return "SessionAnswer(…)"


class SessionQuestion(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an operator signs to be let in."""

    nonce: str
    """Goes into the proof as `args_sha256`; `jti` is `inbox`."""
    aud: str
    """The id of the node, the audience of the proof."""
    now: float
    """The node's clock, in seconds of the Unix clock."""


class SetAside(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that an upstream offers and that cannot be used."""

    name: str
    """What the upstream calls it."""
    reason: str
    """Why it cannot be used."""


class ToolChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool whose contract is not what it was."""

    tool: str
    """The tool."""
    upstream: str
    """The upstream that has it."""
    since: str
    """Since when (ISO 8601, UTC)."""
    from_version: str
    """The version that was accepted."""
    to_version: str
    """The version that it has now."""
    breaking: bool
    """Whether callers would break."""
    held: bool
    """Whether it cannot be called until somebody accepts the change."""
    changes: list[ContractChange]
    """What changed, what breaks first."""
    breaks: ReliesOn
    """Who relies on it."""


class Topic(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A topic: what holds there, and who is there now."""

    name: str
    """What it is called. An entry of the config may be a glob."""
    entry: str
    """The name or the glob in the config by which it is what it is."""
    access: str
    """Who comes in: `restricted`, `private` or `public`."""
    profile: str
    """What callers without a seat may say, and seats that name no profile."""
    anonymous: str
    """What those may say who come without a token, where they may come."""
    seats: int
    """How many seats the config gives."""
    node: str | None
    """What the node is called there. Null: it has no seat."""
    record: str
    """What of it is written to the journal: `off`, `heads` or `whole`."""
    most: int
    """How many may be there at once."""
    open: bool
    """Whether somebody is there, or the node waits there."""
    refused: int
    """How many messages led nowhere since it was opened."""
    members: list[TopicMember]
    """Who is there."""


class TopicList(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Topics of the config, and those that are open by a glob of it."""

    topics: list[Topic]
    """In the order of the config."""


class TopicMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Somebody who is in a topic."""

    participant_id: str = msgspec.field(name="participantId")
    """By what the participant is known in the topic."""
    capabilities: list[str]
    """The kinds of messages that it may send, as patterns."""
    routing: str
    """What it is sent: `all`, or `directed` for what is addressed to it."""
    connected_at: str = msgspec.field(name="connectedAt")
    """When it came (RFC 3339, UTC)."""
    refused: int
    """How many of its messages led nowhere."""
    inside: bool
    """Whether it is a seat of the node itself, without a connection."""


class TopicStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one topic fares."""

    members: int
    """How many are in it."""
    refused: int
    """How many messages led nowhere since it was opened."""


class TreeNode(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One node or server of the tree, and everything below it."""

    name: str
    """Its segment; of the topmost node the root segment, or `root`."""
    role: TreeRole
    """What it is in the tree."""
    state: TreeState
    """How it fares."""
    since: float
    """Since when, in seconds of the Unix clock."""
    problem: str | None
    """What is wrong with it, as a sentence. Null: nothing."""
    id: str
    """Its aggregator_id or subserver_id; a server that does not speak MCP-AX has none."""
    link: str
    """How the node above reaches it: `ax`, `http`, `sse` or `stdio`. Empty for the topmost."""
    peer: str
    """Where it is: a URL, a program, or where it dialled in from."""
    revision: str
    """The revision of MCP that it speaks."""
    transport_class: str
    """The MCP-AX transport class of its link."""
    authority: str | None
    """The authority that it claims. Null: none."""
    verified: bool
    """Whether that was proven."""
    heartbeat_ms: int
    """How often it is heard from."""
    tools: int
    """Tools that it offers."""
    calls: int
    """Calls over the link from the node above, of the topmost all that it took."""
    failed: int
    """Those of them that failed."""
    busy_us: int
    """Microseconds that they took, all together."""
    under_way: int
    """Calls that are being made now."""
    children: list[TreeNode]
    """What is below it."""
    left_out: int
    """How many more are below it for whom there was no room."""


class UpstreamStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one upstream fares."""

    key: str
    """By what the node knows it: the key of the config, or a registered subserver's own."""
    state: UpstreamState
    """Whether it can be called."""
    since: float
    """Since when it is in this state, in seconds of the Unix clock."""
    problem: str | None
    """What is wrong with it, as a sentence. Null: nothing."""
    segment: str
    """The first part of its tools' names."""
    tools: int
    """Tools that it offers."""
    prompts: int
    """Prompts that it offers."""
    resources: int
    """Resources and resource templates that it offers."""
    set_aside: list[SetAside]
    """What it offers and cannot be used."""
    revision: str
    """The revision of MCP that it speaks. Empty: not known yet."""
    restarts: int
    """How often it was started or connected to again."""
    lists: int
    """How often its lists were read."""
    calls: int
    """Calls that it was sent."""
    failed: int
    """Those of them that failed."""
    busy_us: int
    """Microseconds that its calls took, all together."""
    circuit: Circuit
    """Whether calls are let through to it."""
    pid: int | None
    """Its process. Null: it has none on this machine."""
    noise: int
    """Lines that it wrote and nobody asked for."""
    private: int
    """How many clients have a connection of their own to it."""


Decided = Approval | PassedOn
"""What became of a decision."""
SafetyAnswer = Challenge | Execution
"""What came of it."""


class Refused(Exception):
    """The server answered with something else than what was asked for."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500].decode('utf-8', 'replace')}")
        self.status = status
        self.body = body

    @property
    def said(self) -> Any:
        """What the server said, if it is JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


class Client:
    """The node's own HTTP API: what is served beside the MCP endpoint."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: where the server is, without a path of an operation. `token`: sent as bearer."""
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise ValueError(f"{url!r} is no http or https address")
        self.headers = dict(headers or {})
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.timeout = timeout
        self._ssl_context = ssl_context

    def __repr__(self) -> str:
        return f"Client({self._parts.scheme}://{self._parts.netloc})"

    def get_health(self) -> Health:
        """Whether the node answers. For whoever restarts nodes."""
        answer: Health = self._ask("GET", "/healthz", (Health,), {}, msgspec.UNSET)
        return answer

    def get_status(self) -> NodeStatus:
        """How the node and its upstreams fare."""
        answer: NodeStatus = self._ask("GET", "/status", (NodeStatus,), {}, msgspec.UNSET)
        return answer

    def get_tree(self) -> TreeNode:
        """Every node and server from this node down."""
        answer: TreeNode = self._ask("GET", "/tree", (TreeNode,), {}, msgspec.UNSET)
        return answer

    def get_routes(self) -> dict[str, Route]:
        """Which name of a registered subserver's tool leads where."""
        answer: dict[str, Route] = self._ask(
            "GET", "/routes", (dict[str, Route],), {}, msgspec.UNSET
        )
        return answer

    def get_keys(self) -> KeySet:
        """The public keys with which the tokens of this node are checked."""
        answer: KeySet = self._ask("GET", "/.well-known/jwks.json", (KeySet,), {}, msgspec.UNSET)
        return answer

    def get_resource_metadata(self) -> ResourceMetadata:
        """Where to get a token. Not there when the node believes nobody's tokens."""
        answer: ResourceMetadata = self._ask(
            "GET", "/.well-known/oauth-protected-resource", (ResourceMetadata,), {}, msgspec.UNSET
        )
        return answer

    def list_approvals(self) -> ApprovalList:
        """All that wait."""
        answer: ApprovalList = self._ask("GET", "/approvals", (ApprovalList,), {}, msgspec.UNSET)
        return answer

    def follow_approvals(self) -> Iterator[ApprovalList]:
        """The same, told again whenever it changes."""
        return self._follow("/approvals/events", (ApprovalList,), {})

    def get_approval(self, id: str) -> Approval:
        """One approval, for whoever has its id."""
        answer: Approval = self._ask(
            "GET", f"/approvals/{_path(id)}", (Approval,), {}, msgspec.UNSET
        )
        return answer

    def decide(self, id: str, decision: Decision) -> Approval | PassedOn:
        """Confirm or refuse a call by a proof. Who carries a proof does not matter."""
        answer: Approval | PassedOn = self._ask(
            "POST", f"/approvals/{_path(id)}", (Approval, PassedOn), {}, decision
        )
        return answer

    def follow_approval(self, id: str) -> Iterator[Approval]:
        """The same, told again until it is over."""
        return self._follow(f"/approvals/{_path(id)}/events", (Approval,), {})

    def reveal_approval(self, id: str) -> Approval:
        """One pending approval with the values of its masked arguments."""
        answer: Approval = self._ask(
            "GET", f"/approvals/{_path(id)}/revealed", (Approval,), {}, msgspec.UNSET
        )
        return answer

    def ask_for_session(self) -> SessionQuestion:
        """What an operator signs to see what waits."""
        answer: SessionQuestion = self._ask(
            "GET", "/approvals/session", (SessionQuestion,), {}, msgspec.UNSET
        )
        return answer

    def open_session(self, session_answer: SessionAnswer) -> OperatorSession:
        """A session for the operator who answered."""
        answer: OperatorSession = self._ask(
            "POST", "/approvals/session", (OperatorSession,), {}, session_answer
        )
        return answer

    def enrol(self, enrolment: Enrolment) -> Enrolled:
        """Enrol a key or a passkey with the code of an invitation."""
        answer: Enrolled = self._ask("POST", "/approvals/enrol", (Enrolled,), {}, enrolment)
        return answer

    def list_operators(self) -> OperatorList:
        """Who the operators are, and who wants to become one."""
        answer: OperatorList = self._ask(
            "GET", "/approvals/operators", (OperatorList,), {}, msgspec.UNSET
        )
        return answer

    def admit_operator(self, admission: Admission) -> Admitted:
        """Admit a pending enrolment by an operator's proof, or refuse it."""
        answer: Admitted = self._ask("POST", "/approvals/operators", (Admitted,), {}, admission)
        return answer

    def get_safety_desk(self) -> SafetyDesk:
        """The codes of the safety loop. Not there when the node has no such loop."""
        answer: SafetyDesk = self._ask("GET", "/approvals/codes", (SafetyDesk,), {}, msgspec.UNSET)
        return answer

    def ask_safety_desk(self, safety_request: SafetyRequest) -> Challenge | Execution:
        """Renew a challenge, let somebody go, or end an execution."""
        answer: Challenge | Execution = self._ask(
            "POST", "/approvals/codes", (Challenge, Execution), {}, safety_request
        )
        return answer

    def list_topics(self, *, topic: str | None = None) -> TopicList:
        """Which topics there are, and who is in them."""
        answer: TopicList = self._ask(
            "GET", "/admin/topics", (TopicList,), {"topic": topic}, msgspec.UNSET
        )
        return answer

    def list_participants(self, *, topic: str | None = None) -> ParticipantList:
        """Who sits where."""
        answer: ParticipantList = self._ask(
            "GET", "/admin/participants", (ParticipantList,), {"topic": topic}, msgspec.UNSET
        )
        return answer

    def change_capabilities(
        self, id: str, capability_change: CapabilityChange, *, topic: str | None = None
    ) -> CapabilitiesChanged:
        """Change what a participant may say."""
        answer: CapabilitiesChanged = self._ask(
            "POST",
            f"/admin/participants/{_path(id)}/capabilities",
            (CapabilitiesChanged,),
            {"topic": topic},
            capability_change,
        )
        return answer

    def list_contracts(
        self,
        *,
        name: str | None = None,
        version: str | None = None,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        source: str | None = None,
        generator_version: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> ContractList:
        """The contracts that fit."""
        answer: ContractList = self._ask(
            "GET",
            "/contracts",
            (ContractList,),
            {
                "name": name,
                "version": version,
                "domain": domain,
                "protocol": protocol,
                "source": source,
                "generator_version": generator_version,
                "since": since,
                "until": until,
            },
            msgspec.UNSET,
        )
        return answer

    def get_contract(
        self,
        name: str,
        *,
        version: str | None = None,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
    ) -> ContractDocument:
        """One contract: the newest version in a range, with where it came from."""
        answer: ContractDocument = self._ask(
            "GET",
            f"/contracts/{_path(name)}",
            (ContractDocument,),
            {"version": version, "domain": domain, "protocol": protocol},
            msgspec.UNSET,
        )
        return answer

    def get_contract_log(self, name: str, *, count: int | None = None) -> ContractLog:
        """Who published what of a contract, and why."""
        answer: ContractLog = self._ask(
            "GET", f"/contracts/{_path(name)}/log", (ContractLog,), {"count": count}, msgspec.UNSET
        )
        return answer

    def validate_contract(
        self,
        name: str,
        body: Any,
        *,
        version: str | None = None,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        part: str | None = None,
    ) -> ContractValidation:
        """Whether a payload is what a contract asks for."""
        answer: ContractValidation = self._ask(
            "POST",
            f"/contracts/{_path(name)}/validate",
            (ContractValidation,),
            {"version": version, "domain": domain, "protocol": protocol, "part": part},
            body,
        )
        return answer

    # -- asking

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        sent: Any,
        accept: str,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = self._parts
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self.timeout, context=self._ssl_context
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname or "", parts.port, timeout=self.timeout
            )
        asked = [(name, _text(one)) for name, many in query.items() for one in _each(many)]
        target = parts.path.rstrip("/") + path + (f"?{urlencode(asked)}" if asked else "")
        headers = {**self.headers, "Accept": accept}
        for name, value in (fields or {}).items():
            if value is not None:
                headers[name] = _text(value)
        body = None
        if sent is not msgspec.UNSET:
            body = msgspec.json.encode(sent)
            headers["Content-Type"] = _JSON
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise Refused(answer.status, answer.read())
        except BaseException:
            connection.close()
            raise
        return connection, answer

    def _ask(
        self,
        method: str,
        path: str,
        kinds: tuple[Any, ...],
        query: Mapping[str, Any],
        sent: Any,
        fields: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer, as the first of these types that it fits. Without any it is not read."""
        accept = "*/*" if kinds == (bytes,) else _JSON
        connection, answer = self._open(method, path, query, sent, accept, fields)
        try:
            body = answer.read()
        finally:
            connection.close()
        return body if kinds == (bytes,) else _decoded(body, kinds) if kinds else None

    def _follow(
        self,
        path: str,
        kinds: tuple[Any, ...],
        query: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:
        """What each event tells, until the server ends the stream or nobody listens any more."""
        connection, answer = self._open("GET", path, query, msgspec.UNSET, _EVENTS, fields)
        try:
            data: list[bytes] = []
            for line in answer:
                said = line.rstrip(b"\r\n")
                if said.startswith(b"data:"):
                    data.append(said[5:].removeprefix(b" "))
                elif not said and data:
                    yield _decoded(b"\n".join(data), kinds)
                    data = []
        finally:
            connection.close()


def _decoded(body: bytes, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds[:-1]:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            continue
    return msgspec.json.decode(body, type=kinds[-1])


def _each(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _path(value: Any) -> str:
    return quote(_text(value), safe="")
