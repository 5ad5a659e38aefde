"""The reference of `interlock.yaml` as a page, made from the structs of `model.py`. Pure.

`python -m interlock.config.reference > docs/configuration.md` writes it; a test tells when that has
been forgotten.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import NODEFAULT, Struct, inspect

from interlock.config.aql import (
    AgentSafety,
    ApiLimit,
    AqlConfig,
    AqlLimits,
    ChannelConfig,
    ClientView,
    ExecutionsConfig,
    FamilyConfig,
    OperationConfig,
    ProfileConfig,
    QuotaConfig,
    SafetyConfig,
    SearchConfig,
)
from interlock.config.automation import AutomationConfig, LearnedRule
from interlock.config.contracts import ContractsConfig
from interlock.config.drivers import DriverPolicy, DriversConfig
from interlock.config.model import (
    AskConfig,
    BreakerConfig,
    Config,
    Limits,
    OAuthConfig,
    ParentConfig,
    ServerConfig,
    SubserverLink,
    SubserversConfig,
    TlsConfig,
)
from interlock.config.reader import fields_of
from interlock.config.scalars import unwrap
from interlock.config.schema import written_default
from interlock.config.topics import ParticipantUpstream, SeatConfig, TopicConfig, TopicsConfig
from interlock.config.trust import (
    AnchorConfig,
    ApprovalsConfig,
    BudgetConfig,
    BudgetsConfig,
    CallerBudget,
    CertificateConfig,
    IdentityConfig,
    IntrospectionConfig,
    IssuerConfig,
    JournalConfig,
    PinsConfig,
    PolicyConfig,
    RuleConfig,
    TokenConfig,
)

EXAMPLE: Final = """\
listen: 127.0.0.1:8420          # an address that others can reach needs tokens
tokens:                         # who may call; the secret itself never stands in the file
  - name: me
    token: ${env:INTERLOCK_TOKEN}
timeout: 60s

servers:
  jira: http://127.0.0.1:9001/mcp                            # the short form: a URL
  files: npx -y @modelcontextprotocol/server-filesystem .    # or a command line
  wiki:                                                      # the long form
    url: https://wiki.example.com/mcp
    headers:
      Authorization: Bearer ${env:WIKI_TOKEN}
    allow: [search_*, get_*]
  db:
    command: docker
    args: [run, -i, --rm, -e, PGPASSWORD, db-server]
    env:
      PGPASSWORD: ${file:~/.secrets/pg}
    effects:
      drop_*: irreversible
    rename:
      query: sql
    timeout: 2m
    start_timeout: 1m

limits:
  body_bytes: 8MiB
journal:
  max_rows: 100000
"""

_PREAMBLE: Final = """\
# The config: `interlock.yaml`

Made from the program, by `python -m interlock.config.reference > docs/configuration.md`: change it
there.

An empty file is a valid config. `interlock check` says what is wrong with a file, by line;
`interlock schema` prints a JSON Schema for editors. Where a config is looked for, and what happens
when it changes while a node runs, is told in [command-line.md](command-line.md).

```yaml
{example}```

Forms of values:

- **time**: `250ms`, `30s`, `5m`, `1h`, or a plain number of seconds.
- **size**: `512KiB`, `4MiB`, or a plain number of bytes.
- **text with references**: `${{env:NAME}}` is an environment variable, `${{env:NAME:-default}}` the
  same with something to fall back on, `${{file:path}}` the content of a file, and `$${{` a literal
  `${{`. They are resolved when they are used, and never shown.
- **glob**: `*` and `?` as in a shell.
"""

_SECTIONS: Final[tuple[tuple[str, type[Struct], str], ...]] = (
    ("The file", Config, ""),
    (
        "`servers.KEY`",
        ServerConfig,
        "`args`, `env` and `cwd` go with `command`, `headers`, `oauth` and `connections` with "
        "`url`. A text instead of keys is the short form: a URL that starts with `http://` or "
        "`https://`, or a command line.",
    ),
    (
        "`servers.KEY.oauth`",
        OAuthConfig,
        "Nothing of it is needed for a server that lets clients register themselves; see "
        "[sign-in.md](sign-in.md). A server with an `Authorization` among its `headers` is not "
        "signed in to.",
    ),
    (
        "`servers.KEY.ask`",
        AskConfig,
        "A server may ask its caller for a sample of its model, for the answers to a form, or for "
        "its roots. Only clients that can answer are asked, and only what stands here as `allow`.",
    ),
    (
        "`tokens`",
        TokenConfig,
        "A list; needed when `listen` is not a loopback address. There, a token of less than 16 "
        "characters is refused.",
    ),
    (
        "`tls`",
        TlsConfig,
        "Files are looked for in the config file's folder. A client that shows a certificate which "
        "`client_ca` signed proves its names (SAN) with it; one that shows none is served too.",
    ),
    (
        "`parent`",
        ParentConfig,
        "`ws://` is for this machine only: to another one write `wss://`, which takes TLS 1.3. "
        "A node with a parent has no `root_segment` of its own. `authority` is a claim; the proof "
        "of it is a token signed with `authority_key`, or the client `certificate`. A changed "
        "`parent` takes effect at once: the node leaves the old one and registers with the new.",
    ),
    (
        "`subservers`",
        SubserversConfig,
        "Everybody who may call may also register. `enabled`, `path` and `store` take a new start "
        "of the node, the rest takes effect at once.",
    ),
    (
        "`subservers.budget` and `subservers.links.SEGMENT.budget`",
        BudgetConfig,
        "A call beyond it is answered with `budget_exceeded`.",
    ),
    ("`subservers.links.SEGMENT`", SubserverLink, ""),
    (
        "`identity`",
        IdentityConfig,
        "Tokens made with `interlock token` need nothing here. See [trust.md](trust.md).",
    ),
    ("`identity.issuers`", IssuerConfig, "A list."),
    ("`identity.introspection`", IntrospectionConfig, "A list."),
    ("`identity.certificates`", CertificateConfig, "A list; it needs `tls.client_ca`."),
    ("`policy`", PolicyConfig, ""),
    (
        "`policy.rules`",
        RuleConfig,
        "A list. `confirm` waits for the proof of any anchor, `verify` for a human's own: a key or "
        "a passkey of an operator.",
    ),
    ("`approvals`", ApprovalsConfig, ""),
    ("`approvals.anchors`", AnchorConfig, "A list. Exactly one of `key` and `secret` is set."),
    ("`budgets`", BudgetsConfig, "A call beyond it is answered with `budget_exceeded`."),
    ("`budgets.callers`", CallerBudget, "A list."),
    ("`pins`", PinsConfig, "`interlock pins` shows what is pinned and what is held."),
    ("`limits`", Limits, ""),
    ("`breaker`", BreakerConfig, ""),
    ("`journal`", JournalConfig, ""),
    ("`aql`", AqlConfig, "See [aql.md](aql.md)."),
    ("`aql.clients`", ClientView, "A list."),
    ("`aql.profiles.NAME`", ProfileConfig, ""),
    ("`aql.profiles.NAME.families.NAME`", FamilyConfig, ""),
    ("`aql.operations.GLOB`", OperationConfig, ""),
    ("`aql.limits`", AqlLimits, ""),
    ("`aql.safety`", SafetyConfig, "See [aql-safety.md](aql-safety.md)."),
    ("`aql.safety.agents.GLOB`", AgentSafety, ""),
    ("`aql.channels`", ChannelConfig, "A list."),
    ("`aql.executions`", ExecutionsConfig, ""),
    ("`aql.search`", SearchConfig, ""),
    ("`aql.quotas`", QuotaConfig, "A list."),
    ("`aql.api_limits`", ApiLimit, "A list."),
    ("`topics`", TopicsConfig, "See [topics.md](topics.md). `path` takes a new start of the node."),
    (
        "`topics.rooms.NAME`",
        TopicConfig,
        "A name, or a glob such as `team-*`: the entry with the same name counts first, then the "
        "first glob that fits.",
    ),
    ("`topics.rooms.NAME.seats`", SeatConfig, "A list."),
    ("`topics.rooms.NAME.upstreams.ID`", ParticipantUpstream, ""),
    ("`drivers`", DriversConfig, "See [drivers.md](drivers.md)."),
    ("`drivers.policy`", DriverPolicy, ""),
    ("`contracts`", ContractsConfig, "See [contracts.md](contracts.md)."),
    ("`automation`", AutomationConfig, "See [automation.md](automation.md)."),
    (
        "`policy.learned`",
        LearnedRule,
        "A list. `interlock automation accept` writes it, `interlock automation revert` takes it "
        "out again.",
    ),
)
_BY_KIND: Final = {
    "duration": "time",
    "duration_or_zero": "time or 0",
    "size": "size",
    "reference": "text with references",
    "scalar_reference": "text with references",
    "secret_reference": "text with a reference",
    "url": "URL",
    "parent_url": "address",
    "authority": "DNS name",
    "listen": "host:port",
    "path": "path",
    "server": "server",
}


def config_reference() -> str:
    """The whole page."""
    parts = [_PREAMBLE.format(example=EXAMPLE)]
    for title, struct, more in _SECTIONS:
        about = _first_words(struct)
        parts.append(f"## {title}\n\n{about} {more}".rstrip() + f"\n\n{_table(struct)}")
    return "\n".join(parts)


def _table(struct: type[Struct]) -> str:
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for name, known in fields_of(struct).items():
        described = _described(known).replace("|", "\\|")
        default = _default(known)
        lines.append(f"| `{name}` | {_type(known.type)} | {default} | {described} |")
    return "\n".join(lines) + "\n"


def _described(known: inspect.Field) -> str:
    if isinstance(known.type, inspect.Metadata):
        description = (known.type.extra_json_schema or {}).get("description")
        if description:
            return str(description)
    declared, _, _ = unwrap(known.type)
    assert isinstance(declared, inspect.StructType)
    return _first_words(declared.cls)


def _type(declared: inspect.Type) -> str:
    bare, kind, _ = unwrap(declared)
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    match bare:
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in bare.values)
        case inspect.DictType():
            return f"mapping to {_type(bare.value_type)}"
        case inspect.ListType():
            return f"list of {_type(bare.item_type)}".replace("keys of its own", "entries")
        case inspect.StructType():
            return "keys of its own"
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.IntType() | inspect.FloatType():
            return "number"
    return "text"


def _default(known: inspect.Field) -> str:
    if known.required:
        return "required"
    value: Any = written_default(known)
    if value is None and known.default_factory is not NODEFAULT:
        made = known.default_factory()
        if isinstance(made, list) and all(isinstance(one, str | int) for one in made):
            # One value after the other, as they would stand in brackets.
            return ", ".join(f"`{one}`" for one in made).replace("|", "\\|")
    if value is None:
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _first_words(struct: type[Struct]) -> str:
    """What its docstring says first, to the end of the paragraph."""
    return " ".join((struct.__doc__ or "").strip().partition("\n\n")[0].split())


if __name__ == "__main__":
    print(config_reference(), end="")
