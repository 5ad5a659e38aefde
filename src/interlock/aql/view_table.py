"""The views of AQL: endpoints of categories or of families, by what the config says."""

from __future__ import annotations

from typing import Final

from interlock.aql.config import AqlConfig, FamilyConfig
from interlock.core.config import Config
from interlock.core.server.mcp.views import ViewRule, ViewTable
from interlock.protocol.aql_terms import Category, Face, Family, Mode

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
_MODES: Final[dict[str, Mode]] = {
    "aql": "semantic",
    "aql-single": "single",
    "aql-all": "all",
    "auto": "auto",
}


def view_table(config: Config) -> ViewTable:
    """The views that the section `aql` gives."""
    aql = config.section(AqlConfig)
    crude = _families(_BUILT_IN[CRUDE], aql.prefix)
    faces = {name: Face(mode, CRUDE, crude, aql.prefix) for name, mode in _MODES.items()}
    profiles = {name: dict(profile.families) for name, profile in aql.profiles.items()}
    for name, families in {**_BUILT_IN, **profiles}.items():
        faces[name] = Face("semantic", name, _families(families, aql.prefix), aql.prefix)
    denied = aql.plain == "deny"
    if denied:
        # Not because it is shorter, either.
        faces["auto"] = faces["aql"]
    rules = [ViewRule(one.view, one.clients, one.callers) for one in aql.clients]
    return ViewTable(faces, aql.view, faces["aql"], rules, denied)


def _families(families: dict[str, FamilyConfig], prefix: str) -> tuple[Family, ...]:
    return tuple(
        Family(
            name,
            f"{prefix}mcp_aql_{name}",
            frozenset(Category(category) for category in family.categories),
            tuple(family.operations),
        )
        for name, family in families.items()
    )
