"""`interlock version` and `interlock schema`."""

from __future__ import annotations

import sys
from typing import Final

from interlock import __version__

MCP_AX_REVISION: Final = "draft-abbott-mcp-ax-00"


def version_text() -> str:
    """Return the version of Interlock and of the protocols that it supports."""
    from interlock.protocol.mcp import REVISIONS

    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"interlock {__version__}\n"
        f"MCP {', '.join(REVISIONS)}\n"
        f"MCP-AX {MCP_AX_REVISION}\n"
        f"Python {python}"
    )


def version() -> None:
    """Print the version of Interlock, and the MCP and MCP-AX revisions that it supports."""
    print(version_text())


def schema() -> None:
    """Print the JSON Schema of interlock.yaml, for editors.

    Example: interlock schema > interlock.schema.json
    """
    import json

    from interlock.core.config import config_json_schema

    print(json.dumps(config_json_schema(), indent=2, ensure_ascii=False))
