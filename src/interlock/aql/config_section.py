"""The config section `aql` for the config reader: checks between keys, environment variables, views
and the reference. The structs are in `config.py`, which is cheap to import.
"""

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
from interlock.core.config.problems import ConfigError, KeyPath, quote
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

_RESERVED_SEGMENT: Final = "aql"
_SIZES: Final = {
    "request_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
    "response_bytes": (MEBIBYTE, 100 * MEBIBYTE, "1MiB to 100MiB"),
    "string_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
}


def check_aql(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report every problem between the keys of `aql`."""
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        if (server.segment or default_segment(key)) == _RESERVED_SEGMENT:
            reader.report(
                ("servers", key),
                f"the segment {quote(_RESERVED_SEGMENT)} is reserved for built-in operations",
                "choose another one: segment: NAME",
            )
    aql: AqlConfig | None = values.get("aql")
    if aql is None or ("aql",) not in reader.places:
        return
    if aql.safety_only and servers:
        reader.report(
            ("aql", "safety_only"),
            "a node with safety_only serves no servers",
            "remove `servers`, or set safety_only: false",
        )
    _check_views(reader, aql)
    for name, profile in aql.profiles.items():
        _check_profile(reader, ("aql", "profiles", name), name, profile)
    for name, (minimum, maximum, range_text) in _SIZES.items():
        if not minimum <= getattr(aql.limits, name) <= maximum:
            reader.report(("aql", "limits", name), f"must be {range_text}", f"use {range_text}")
    if aql.limits.page > aql.limits.max_page:
        reader.report(
            ("aql", "limits", "page"),
            f"must not exceed limits.max_page, which is {aql.limits.max_page}",
            "use a smaller value, or a larger max_page",
        )
    _check_names(reader, aql)
    for index, channel in enumerate(aql.channels):
        if (channel.kind == "command") != bool(channel.command):
            reader.report(
                ("aql", "channels", index),
                "`command` is required for kind command, and not allowed for others",
                "use kind: command with command: [PROGRAM, ARGUMENT]",
            )
    for index, quota in enumerate(aql.quotas):
        steps = [quota.warn, quota.pause]
        if quota.hard_stop is not None:
            steps.append(quota.hard_stop)
        if steps != sorted(steps):
            reader.report(
                ("aql", "quotas", index),
                "warn, pause and hard_stop must be in ascending order",
                "reorder the values",
            )
    for index, limit in enumerate(aql.api_limits):
        for scope in ("endpoint", "category"):
            if (limit.scope == scope) != (getattr(limit, scope) is not None):
                reader.report(
                    ("aql", "api_limits", index),
                    f"{scope} requires scope: {scope}",
                    f"use both or none: scope: {scope}, {scope}: …",
                )


def _check_names(reader: NodeReader, aql: AqlConfig) -> None:
    """Report operation names that are reserved, used twice, or set for several tools."""
    glob_by_name: dict[str, str] = {}
    for glob, operation in aql.operations.items():
        name = operation.name
        if name is None:
            continue
        path = ("aql", "operations", glob, "name")
        if name in RESERVED_OPERATIONS:
            reader.report(path, f"{quote(name)} is a built-in operation", "choose another name")
        elif name in glob_by_name:
            reader.report(
                path, f"{quote(glob_by_name[name])} already has this name", "choose another name"
            )
        elif any(wildcard in glob for wildcard in "*?["):
            reader.report(
                path,
                "a name can be set for one tool only, and this glob may match several",
                "use the canonical name of the tool, such as github.create_issue",
            )
        glob_by_name.setdefault(name, glob)


def _check_views(reader: NodeReader, aql: AqlConfig) -> None:
    view_names = [*BUILT_IN_VIEWS, *aql.profiles]
    views_by_path: list[tuple[KeyPath, str]] = [(("aql", "view"), aql.view)]
    views_by_path += [
        (("aql", "clients", index, "view"), client_view.view)
        for index, client_view in enumerate(aql.clients)
    ]
    for path, view in views_by_path:
        if view not in view_names:
            reader.report(
                path, f"unknown view {quote(view)}", f"use one of {', '.join(view_names)}"
            )
        elif view == "plain" and aql.plain == "deny" and path in reader.places:
            reader.report(
                path,
                "the plain view is denied by aql.plain",
                "use another view, or plain: allow",
            )


def _check_profile(reader: NodeReader, path: KeyPath, name: str, profile: ProfileConfig) -> None:
    if name in BUILT_IN_VIEWS:
        reader.report(path, f"{quote(name)} is a built-in view", "choose another name")
    counts = Counter(
        category for family in profile.families.values() for category in family.categories
    )
    for category in get_args(CategoryName):
        if counts[category] != 1:
            placement = "in none" if not counts[category] else f"in {counts[category]}"
            reader.report(
                path,
                f"category {category} is {placement} of its families",
                "put every category into exactly one family",
            )


# -- Environment variables of the AQL draft, which override the file

MODE: Final = "MCP_AQL_ENDPOINT_MODE"
PROFILE: Final = "MCP_AQL_ENDPOINT_PROFILE"
PREFIX: Final = "MCP_AQL_TOOL_PREFIX"
SAFETY: Final = "MCPAQL_SAFETY_LOOP"
_VIEW_BY_MODE: Final = {"semantic": "aql", "crude": "aql", "single": "aql-single", "all": "aql-all"}
_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,17}_")
"""The pattern of `AqlConfig.prefix`, without the empty prefix."""

_log = logging.getLogger("interlock.config")


def with_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the config with the values of environment variables. Raises ConfigError."""
    config_before = aql = config.section(AqlConfig)
    mode, profile = environ.get(MODE), environ.get(PROFILE)
    if mode:
        if mode not in _VIEW_BY_MODE:
            raise _unknown_value_error(MODE, mode, _VIEW_BY_MODE)
        if mode == "crude":
            _log.warning("aql: %s=crude is deprecated. Use semantic.", MODE)
        aql = replace(aql, view=_VIEW_BY_MODE[mode])
    if profile and profile != "crude":
        profile_names = [
            "crude",
            *(name for name in BUILT_IN_VIEWS if name == "semantic"),
            *aql.profiles,
        ]
        if profile not in profile_names:
            raise _unknown_value_error(PROFILE, profile, profile_names)
        if mode in (None, "", "semantic", "crude"):
            aql = replace(aql, view=profile)
    prefix = environ.get(PREFIX)
    if prefix:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError.of(
                f"{PREFIX}={quote(prefix)} is no valid prefix",
                "use lower case letters, digits and _, up to 19 characters, with _ at the end",
            )
        aql = replace(aql, prefix=prefix)
    safety = environ.get(SAFETY)
    if safety:
        if safety not in get_args(SafetyMode):
            raise _unknown_value_error(SAFETY, safety, get_args(SafetyMode))
        aql = replace(aql, safety=replace(aql.safety, mode=safety))
    return config if aql is config_before else config.with_sections(aql)


def _unknown_value_error(name: str, value: str, choices_of_value: Iterable[str]) -> ConfigError:
    choices = ", ".join(choices_of_value)
    return ConfigError.of(f"{name}={quote(value)} is unknown", f"use one of {choices}")


# -- Views

CRUDE: Final = "crude"
SEMANTIC: Final = "semantic"
_BUILT_IN_PROFILES: Final[dict[str, dict[str, FamilyConfig]]] = {
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
_MODE_BY_VIEW: Final[dict[str, Mode]] = {
    "aql": "semantic",
    "aql-single": "single",
    "aql-all": "all",
    "auto": "auto",
}


def view_table(config: Config) -> ViewTable:
    """Return the views of the section `aql`."""
    aql = config.section(AqlConfig)
    crude_families = _make_families(_BUILT_IN_PROFILES[CRUDE], aql.prefix)
    views = {
        name: OperationView(mode, CRUDE, crude_families, aql.prefix)
        for name, mode in _MODE_BY_VIEW.items()
    }
    profiles = {name: dict(profile.families) for name, profile in aql.profiles.items()}
    for name, families in {**_BUILT_IN_PROFILES, **profiles}.items():
        views[name] = OperationView(
            "semantic", name, _make_families(families, aql.prefix), aql.prefix
        )
    is_plain_denied = aql.plain == "deny"
    if is_plain_denied:
        # `auto` may show plain tools, which are denied.
        views["auto"] = views["aql"]
    rules = [
        ViewRule(client_view.view, client_view.clients, client_view.callers)
        for client_view in aql.clients
    ]
    return ViewTable(views, aql.view, views["aql"], rules, is_plain_denied)


def _make_families(families: dict[str, FamilyConfig], prefix: str) -> tuple[EndpointFamily, ...]:
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
