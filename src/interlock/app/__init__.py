"""The composition root: the only package that imports all the others.

`Node` is imported on first use, because the import takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.app.node import Node
    from interlock.core.status import NodeStatus

__all__ = ["Node", "NodeStatus"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from interlock.app import node
        from interlock.core import status

        return getattr(node if name == "Node" else status, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
