"""M1 and M2: simulated microcontrollers behind the gateway. The variable DEVICE selects one."""

from __future__ import annotations

import os

from interlock.tree.subserver import Subserver

DEVICE, BUS = os.environ.get("DEVICE", "m0"), os.environ.get("BUS", "none")
LEVEL = {"led": 0}

CLASSES = {"UART": "uart_cbor", "BLE": "ble_cbor"}

device = Subserver("device", transport_class=CLASSES.get(BUS, "native"))


@device.tool(latency_class="fast", mutable=False)
def read_sensor() -> dict[str, object]:
    """Return the value of the sensor, and the bus over which it was read."""
    return {"device": DEVICE, "bus": BUS, "celsius": 21.5}


@device.tool(latency_class="fast", mutable=True, reversible=True, idempotent=True)
def set_led(level: int) -> dict[str, object]:
    """Set the brightness of the lamp of the device."""
    before, LEVEL["led"] = LEVEL["led"], level
    return {"device": DEVICE, "before": before, "level": level}


if __name__ == "__main__":
    device.run()
