"""What a node is told about learning from decisions: how many it takes to suggest a rule, and the
rules that a human accepted."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from interlock.core.config.section import Count, Duration, Section, Text, says

_DAY: Final = 86_400.0


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


class AutomationConfig(Section, frozen=True):
    """When decisions of the past become a suggestion."""

    enabled: Annotated[bool, says("false: decisions are neither kept nor looked at.")] = True
    decisions: Annotated[
        Annotated[int, Meta(ge=3)], says("So many alike it takes to suggest a rule; 3 at least.")
    ] = 20
    agreement: Annotated[
        Annotated[float, Meta(ge=0.5, le=1.0)], says("The share of them that must agree.")
    ] = 0.98
    keep: Annotated[Duration, says("How long a decision is remembered.")] = 180 * _DAY
    most: Annotated[Count, says("The most decisions that are kept.")] = 100_000
