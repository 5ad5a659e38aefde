"""What a node is told about the contracts of tools: where their history is kept, and what happens
when one changes so that callers would break."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.reader import NodeReader
from interlock.core.config.section import FeatureSection, Text, says

OnBreak = Literal["report", "hold"]


class ContractsConfig(FeatureSection, frozen=True):
    """The schemas of tools: their history, and what happens when one breaks."""

    KEY = "contracts"

    watch: Annotated[
        bool, says("false: nobody looks whether the schemas of tools change, and nothing is held.")
    ] = True
    registry: Annotated[
        Text | None,
        says("The folder of the contract registry (a Git repository). Default: none is kept."),
    ] = None
    on_break: Annotated[
        OnBreak,
        says(
            "report: a breaking change of a tool's schema is told and written down. hold: the tool "
            "cannot be called until somebody accepts the change."
        ),
    ] = "report"
    serve: Annotated[
        bool,
        says("Whether callers may ask the registry over HTTP: GET /contracts and below."),
    ] = True


def check_contracts(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem between them."""
    contracts: ContractsConfig | None = values.get("contracts")
    if contracts is None or ("contracts",) not in reader.places:
        return
    path = ("contracts", "registry")
    registry = contracts.registry
    if registry is not None and PurePath(registry) in (PurePath("."), PurePath("~")):
        reader.report(
            path,
            "the registry is a repository of its own, and something else is in this folder",
            "name a folder for it, such as contracts-registry",
        )
    elif registry is not None and registry == values.get("state_dir"):
        reader.report(path, "the node's own files are there", "name another folder")
    if contracts.on_break == "hold" and not contracts.watch:
        reader.report(
            ("contracts", "on_break"), "nothing is held that nobody watches", "remove watch: false"
        )


SECTION: Final = SectionDefinition(
    ContractsConfig,
    check=check_contracts,
    reference=(("`contracts`", ContractsConfig, "See [contracts.md](contracts.md)."),),
)
