"""The config section `contracts`: the history of tool schemas, and what happens on a breaking
change."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.reader import NodeReader
from interlock.core.config.section import FeatureSection, Text, help_text

OnBreak = Literal["report", "hold"]


class ContractsConfig(FeatureSection, frozen=True):
    """The history of tool schemas, and what happens on a breaking change."""

    KEY = "contracts"

    watch: Annotated[
        bool,
        help_text("Watch the schemas of tools for changes. false: no change is reported or held."),
    ] = True
    registry: Annotated[
        Text | None,
        help_text("The folder of the contract registry, a Git repository. Default: no registry."),
    ] = None
    on_break: Annotated[
        OnBreak,
        help_text(
            "What to do when a tool's schema has a breaking change. report: log it and write it to "
            "the journal. hold: also reject calls of the tool until an operator accepts the change."
        ),
    ] = "report"
    serve: Annotated[
        bool,
        help_text(
            "Serve the registry to callers over HTTP: GET /contracts and the paths below it."
        ),
    ] = True


def check_contracts(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report all problems of the section."""
    contracts: ContractsConfig | None = values.get("contracts")
    if contracts is None or ("contracts",) not in reader.places:
        return
    path = ("contracts", "registry")
    registry = contracts.registry
    if registry is not None and PurePath(registry) in (PurePath("."), PurePath("~")):
        reader.report(
            path,
            "a contract registry needs a Git repository of its own, but this folder has other "
            "files",
            "name a separate folder, such as contracts-registry",
        )
    elif registry is not None and registry == values.get("state_dir"):
        reader.report(
            path, "this is the state folder of the node", "name another folder for the registry"
        )
    if contracts.on_break == "hold" and not contracts.watch:
        reader.report(
            ("contracts", "on_break"),
            "`hold` needs the watch, which is off",
            "remove `watch: false`",
        )


SECTION: Final = SectionDefinition(
    ContractsConfig,
    check=check_contracts,
    reference=(("`contracts`", ContractsConfig, "See [contracts.md](contracts.md)."),),
)
