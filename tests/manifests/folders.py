"""A workspace on disk that each test fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interlock.manifests.workspace import Workspace, load_workspace
from tests.manifests.texts import driver_text, secrets_text, tool_text, write


class Folder:
    """A workspace on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tool(self, name: str = "fs-read", where: str = "tools", **changes: Any) -> Path:
        return write(self.root / where / name / "TOOL.md", tool_text(**changes))

    def driver(self, name: str = "files-mcp", where: str = ".drivers", **changes: Any) -> Path:
        text = driver_text(**{"id": name, **changes})
        return write(self.root / where / name / "DRIVER.md", text)

    def secrets(self, where: str = ".secrets", *secrets: dict[str, Any]) -> Path:
        return write(self.root / where / "SECRETS.md", secrets_text(*secrets))

    def load(self, **options: Any) -> Workspace:
        return load_workspace(self.root, **options)


def rejection_reasons(workspace: Workspace, path: Path) -> str:
    """Return why a file is rejected."""
    return " | ".join(str(problem) for problem in workspace.rejected_files[path].problems)
