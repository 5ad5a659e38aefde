"""What a node is told about the contracts of tools: where their history is kept, and what happens
when one changes so that callers would break."""

from __future__ import annotations

from typing import Annotated, Literal

from interlock.core.config.section import Section, Text, says

OnBreak = Literal["report", "hold"]


class ContractsConfig(Section, frozen=True):
    """The schemas of tools: their history, and what happens when one breaks."""

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
