"""The sections `parent` and `subservers` of the config: their structs, checks and reference."""

from __future__ import annotations

from typing import Final

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.trust import BudgetConfig
from interlock.tree.config import ParentConfig, SubserverLink, SubserversConfig
from interlock.tree.config_checks import check_tree

PARENT: Final = SectionDefinition(
    ParentConfig,
    "The node that this one registers with. Default: none.",
    check=check_tree,
    reference=(
        (
            "`parent`",
            ParentConfig,
            "`ws://` is for this machine only: to another one write `wss://`, which takes TLS 1.3. "
            "A node with a parent has no `root_segment` of its own. `authority` is a claim; the "
            "proof of it is a token signed with `authority_key`, or the client `certificate`. A "
            "changed `parent` takes effect at once: the node leaves the old one and registers with "
            "the new.",
        ),
    ),
)
SUBSERVERS: Final = SectionDefinition(
    SubserversConfig,
    reference=(
        (
            "`subservers`",
            SubserversConfig,
            "Everybody who may call may also register. `enabled`, `path` and `store` take a new "
            "start of the node, the rest takes effect at once.",
        ),
        (
            "`subservers.budget` and `subservers.links.SEGMENT.budget`",
            BudgetConfig,
            "A call beyond it is answered with `budget_exceeded`.",
        ),
        ("`subservers.links.SEGMENT`", SubserverLink, ""),
    ),
)
