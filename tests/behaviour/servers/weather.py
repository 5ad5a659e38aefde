"""The simplest server that the official SDK makes: tools without annotations. Stdio.

Writes the name of each executed tool into the file that it is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather", log_level="CRITICAL")


def executed(name: str) -> str:
    with Path(sys.argv[1]).open("a", encoding="utf-8") as ledger:
        ledger.write(name + "\n")
    return name


@server.tool()
def delete_station(station_id: str) -> str:
    """Delete a weather station permanently."""
    return executed("delete_station")


@server.tool()
def drop_stations(region: str) -> str:
    """Drop all stations of a region."""
    return executed("drop_stations")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return executed("add")


@server.tool()
def get_forecast(city: str) -> str:
    """The forecast for a city."""
    return executed("get_forecast")


@server.tool()
def manage_stations(action: Literal["list", "delete"], station_id: str = "") -> str:
    """Manage weather stations."""
    return executed(f"manage_stations {action}")


if __name__ == "__main__":
    server.run()
