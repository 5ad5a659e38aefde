"""The config section `aql` as the config reader uses it: checks between keys, environment
variables, views, and the reference. The structs are in `config.py`, which is cheap to import."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from msgspec.structs import replace

from interlock.aql.config import (
    BUILT_IN_VIEWS,
    KIBIBYTE,
    MEBIBYTE,
    AgentSafety,
    ApiLimit,
    AqlConfig,
    AqlLimits,
    CategoryName,
    ChannelConfig,
    ClientView,
    ExecutionsConfig,
    FamilyConfig,
    OperationConfig,
    ProfileConfig,
    QuotaConfig,
    SafetyConfig,
    SafetyMode,
    SearchConfig,
)
from interlock.core.config import Config
from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import ConfigError, KeyPath, quoted
from interlock.core.config.quantities import default_segment
from interlock.core.config.reader import NodeReader
from interlock.core.server.mcp.views import ViewRule, ViewTable
from interlock.protocol.aql_terms import (
    RESERVED_OPERATIONS,
    Category,
    EndpointFamily,
    Mode,
    OperationView,
)

# -- Checks between keys

_OWN_SEGMENT: Final = "aql"
_SIZES: Final = {
    "request_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
    "response_bytes": (MEBIBYTE, 100 * MEBIBYTE, "1MiB to 100MiB"),
    "string_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
}


def check_aql(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report every problem between the keys of `aql`."""
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        if (server.segment or default_segment(key)) == _OWN_SEGMENT:
            reader.report(
                ("servers", key),
                f"the segment {quoted(_OWN_SEGMENT)} is taken by the node's own operations",
                "write another one: segment: NAME",
            )
    aql: AqlConfig | None = values.get("aql")
    if aql is None or ("aql",) not in reader.places:
        return
    if aql.safety_only and servers:
        reader.report(
            ("aql", "safety_only"),
            "a node for the safety loop alone has no servers",
            "take the servers out, or write safety_only: false",
        )
    _check_views(reader, aql)
    for name, profile in aql.profiles.items():
        _check_profile(reader, ("aql", "profiles", name), name, profile)
    for name, (least, most, said) in _SIZES.items():
        if not least <= getattr(aql.limits, name) <= most:
            reader.report(("aql", "limits", name), f"it must be {said}", f"write {said}")
    if aql.limits.page > aql.limits.most_page:
        reader.report(
            ("aql", "limits", "page"),
            f"it is more than limits.most_page, which is {aql.limits.most_page}",
            "write less, or a larger most_page",
        )
    _check_names(reader, aql)
    for at, channel in enumerate(aql.channels):
        if (channel.kind == "command") != bool(channel.command):
            reader.report(
                ("aql", "channels", at),
                "a channel of the kind command has a command, and no other has",
                "write kind: command with command: [PROGRAM, ARGUMENT]",
            )
    for at, quota in enumerate(aql.quotas):
        steps = [quota.warn, quota.pause]
        if quota.hard_stop is not None:
            steps.append(quota.hard_stop)
        if steps != sorted(steps):
            reader.report(
                ("aql", "quotas", at),
                "warn must come before pause, and pause before hard_stop",
                "write them in growing order",
            )
    for at, limit in enumerate(aql.api_limits):
        for scope in ("endpoint", "category"):
            if (limit.scope == scope) != (getattr(limit, scope) is not None):
                reader.report(
                    ("aql", "api_limits", at),
                    f"{scope} goes with scope: {scope}",
                    f"write both or none: scope: {scope}, {scope}: …",
                )


def _check_names(reader: NodeReader, aql: AqlConfig) -> None:
    """Report names of operations that are reserved, used twice, or given to several tools."""
    given: dict[str, str] = {}
    for glob, operation in aql.operations.items():
        name = operation.name
        if name is None:
            continue
        path = ("aql", "operations", glob, "name")
        if name in RESERVED_OPERATIONS:
            reader.report(path, f"{quoted(name)} is the node's own", "give it another name")
        elif name in given:
            reader.report(
                path, f"{quoted(given[name])} has this name already", "give it another name"
            )
        elif any(one in glob for one in "*?["):
            reader.report(
                path,
                "a name is for one tool, and this may be several",
                "write the whole canonical name of the tool, such as github.create_issue",
            )
        given.setdefault(name, glob)


def _check_views(reader: NodeReader, aql: AqlConfig) -> None:
    known = [*BUILT_IN_VIEWS, *aql.profiles]
    named: list[tuple[KeyPath, str]] = [(("aql", "view"), aql.view)]
    named += [(("aql", "clients", at, "view"), one.view) for at, one in enumerate(aql.clients)]
    for path, view in named:
        if view not in known:
            reader.report(path, f"there is no view {quoted(view)}", f"write {', '.join(known)}")
        elif view == "plain" and aql.plain == "deny" and path in reader.places:
            reader.report(
                path,
                "the plain view is denied by aql.plain",
                "write another view, or plain: allow",
            )


def _check_profile(reader: NodeReader, path: KeyPath, name: str, profile: ProfileConfig) -> None:
    if name in BUILT_IN_VIEWS:
        reader.report(path, f"{quoted(name)} is a view already", "give the profile another name")
    found = Counter(
        category for family in profile.families.values() for category in family.categories
    )
    for category in get_args(CategoryName):
        if found[category] != 1:
            how = "in none" if not found[category] else f"in {found[category]}"
            reader.report(
                path,
                f"{category} is {how} of its families",
                "put every category into exactly one family",
            )


# -- Environment variables of the AQL draft, which override the file

MODE: Final = "MCP_AQL_ENDPOINT_MODE"
PROFILE: Final = "MCP_AQL_ENDPOINT_PROFILE"
PREFIX: Final = "MCP_AQL_TOOL_PREFIX"
SAFETY: Final = "MCPAQL_SAFETY_LOOP"
_VIEW_OF_MODE: Final = {"semantic": "aql", "crude": "aql", "single": "aql-single", "all": "aql-all"}
_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,17}_")
"""As the file's own; see `AqlConfig.prefix`."""

_log = logging.getLogger("interlock.config")


def with_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """The config, with the values of the environment variables. Raises ConfigError."""
    before = aql = config.section(AqlConfig)
    mode, profile = environ.get(MODE), environ.get(PROFILE)
    if mode:
        if mode not in _VIEW_OF_MODE:
            raise _wrong(MODE, mode, _VIEW_OF_MODE)
        if mode == "crude":
            _log.warning("%s=crude is how it was said once: write semantic.", MODE)
        aql = replace(aql, view=_VIEW_OF_MODE[mode])
    if profile and profile != "crude":
        known = ["crude", *(name for name in BUILT_IN_VIEWS if name == "semantic"), *aql.profiles]
        if profile not in known:
            raise _wrong(PROFILE, profile, known)
        if mode in (None, "", "semantic", "crude"):
            aql = replace(aql, view=profile)
    prefix = environ.get(PREFIX)
    if prefix:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError.of(
                f"{PREFIX}={quoted(prefix)} cannot be a prefix",
                "write small letters, digits and _, fewer than 20, and _ as the last one",
            )
        aql = replace(aql, prefix=prefix)
    safety = environ.get(SAFETY)
    if safety:
        if safety not in get_args(SafetyMode):
            raise _wrong(SAFETY, safety, get_args(SafetyMode))
        aql = replace(aql, safety=replace(aql.safety, mode=safety))
    return config if aql is before else config.with_sections(aql)


def _wrong(name: str, value: str, known: Iterable[str]) -> ConfigError:
    choices = ", ".join(known)
    return ConfigError.of(f"{name}={quoted(value)} is not known", f"write {choices}")


# -- Views

CRUDE: Final = "crude"
SEMANTIC: Final = "semantic"
_BUILT_IN: Final[dict[str, dict[str, FamilyConfig]]] = {
    CRUDE: {
        "create": FamilyConfig(categories=["CREATE"]),
        "read": FamilyConfig(categories=["READ"]),
        "update": FamilyConfig(categories=["UPDATE"]),
        "delete": FamilyConfig(categories=["DELETE"]),
        "execute": FamilyConfig(categories=["EXECUTE"]),
    },
    SEMANTIC: {
        "discover": FamilyConfig(operations=["introspect"]),
        "query": FamilyConfig(categories=["READ"]),
        "manage": FamilyConfig(categories=["CREATE", "UPDATE", "DELETE"]),
        "operate": FamilyConfig(categories=["EXECUTE"]),
    },
}
_MODE_OF_VIEW: Final[dict[str, Mode]] = {
    "aql": "semantic",
    "aql-single": "single",
    "aql-all": "all",
    "auto": "auto",
}


def view_table(config: Config) -> ViewTable:
    """The views that the section `aql` gives."""
    aql = config.section(AqlConfig)
    crude = _families(_BUILT_IN[CRUDE], aql.prefix)
    faces = {
        name: OperationView(mode, CRUDE, crude, aql.prefix) for name, mode in _MODE_OF_VIEW.items()
    }
    profiles = {name: dict(profile.families) for name, profile in aql.profiles.items()}
    for name, families in {**_BUILT_IN, **profiles}.items():
        faces[name] = OperationView("semantic", name, _families(families, aql.prefix), aql.prefix)
    denied = aql.plain == "deny"
    if denied:
        # `auto` shows tools where their list is shorter: that is denied, too.
        faces["auto"] = faces["aql"]
    rules = [ViewRule(one.view, one.clients, one.callers) for one in aql.clients]
    return ViewTable(faces, aql.view, faces["aql"], rules, denied)


def _families(families: dict[str, FamilyConfig], prefix: str) -> tuple[EndpointFamily, ...]:
    return tuple(
        EndpointFamily(
            name,
            f"{prefix}mcp_aql_{name}",
            frozenset(Category(category) for category in family.categories),
            tuple(family.operations),
        )
        for name, family in families.items()
    )


SECTION: Final = SectionDefinition(
    AqlConfig,
    check=check_aql,
    environment=with_environment,
    views=view_table,
    reference=(
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
    ),
)
