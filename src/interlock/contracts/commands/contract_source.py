"""Where features say which contracts their files declare (TOOL.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.core.config import Config
    from interlock.manifests.workspace import Workspace


class ContractSource(ABC):
    """A part of the reports of a feature: `interlock contracts` shows what breaks of these."""

    @abstractmethod
    def workspace(self, config: Config, base_dir: Path) -> Workspace | None:
        """The files that a node of this config would read. None: there are none."""
