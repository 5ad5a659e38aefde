"""C: a service in the cloud, below the regional node."""

from __future__ import annotations

from interlock.tree.subserver import Subserver

cloud = Subserver("cloud")


@cloud.tool(latency_class="standard", mutable=False, consistency="eventual")
def forecast(hours: int = 1) -> dict[str, object]:
    """Return the temperature in a number of hours."""
    return {"server": "cloud", "hours": hours, "celsius": 20 - hours % 7}


if __name__ == "__main__":
    cloud.run()
