"""A subserver program for tests."""

from __future__ import annotations

from interlock.tree.subserver import Subserver

plant = Subserver("plant", version="3", instructions="Mind the valves.")
readings = {"boiler": 21.5}


@plant.tool(latency_class="fast", mutable=False)
def temperature(sensor: str) -> float:
    """Return the value of a sensor."""
    print("this must not spoil the channel")
    return readings[sensor]


if __name__ == "__main__":
    plant.run(heartbeat=0.2)
