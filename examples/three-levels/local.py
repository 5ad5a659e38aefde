"""L: a server of the root."""

from __future__ import annotations

import time

from interlock.tree.subserver import Subserver

local = Subserver("local")


@local.tool(latency_class="realtime", mutable=False)
def clock() -> dict[str, object]:
    """Return the current time."""
    return {"server": "local", "unix": int(time.time())}


if __name__ == "__main__":
    local.run()
