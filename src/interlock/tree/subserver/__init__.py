'''Write a subserver: a program with tools that registers itself with an Interlock node.

    from interlock.tree.subserver import Progress, Subserver, ToolError

    plant = Subserver("plant")

    @plant.tool(latency_class="fast", mutable=False)
    def temperature(sensor: str, unit: str = "C") -> float:
        """Read a sensor."""
        if sensor not in SENSORS:
            raise ToolError(f"There is no sensor {sensor}.")    # the model gets this text
        return SENSORS[sensor].read(unit)

    @plant.tool(mutable=True, reversible=True, idempotent=True)
    async def open_valve(number: int, percent: int = 100, *, progress: Progress) -> None:
        """Open a valve."""
        ...

    plant.run("wss://node.example.com/ax", token=os.environ["NODE_TOKEN"])

The node lists these tools as `plant.temperature` and `plant.open_valve`. The address of the node is
a WebSocket (`ws://127.0.0.1:8420/ax`, `wss://…`) or a Unix socket (`unix:/path/ax.sock`). The node
can also start the program (`servers: {plant: {command: ./plant.py --stdio, transport: ax}}`).
`run()` without an address reads the command line: an address, or `--stdio`.

- The schema of a tool is made from the signature of the function: plain types, `Optional`, `list`,
  `dict`, `Literal`, `msgspec.Struct`, and `Annotated[int, msgspec.Meta(description=…, ge=0)]` for
  details. The docstring is the description. Arguments that do not match the schema are rejected.
- Plain functions run in a thread, so that they do not block. `async` functions run on the loop.
- A returned text is the result. A dict or Struct is structured content. Other values become JSON.
  An exception becomes an error result.
- The arguments of `tool(...)` (`latency_class`, `mutable`, …) are the MCP-AX capability of the
  tool. Set them: a tool without a capability counts as irreversible.
- `plant.log("warning", "It is hot.")` and `await plant.notify("notifications/…", {...})` send
  notifications: inside a tool to the caller of the tool, otherwise to all clients. `event_id` and
  `causal_parent` (UUIDs) are forwarded unchanged.
- A lost connection is opened again without a limit, and the nodes in `backup=[…]` are tried in
  order. Both are logged (`interlock.subserver`), with `run` to stderr. If a node rejects the
  subserver permanently, `run` exits with the reason.
- `async with plant.connect(url):` is `run` for a program with its own event loop. It raises
  InterlockError where `run` exits.
- The id of the subserver is stored in the state folder (~/.local/state). At one node, only one
  process with the same segment can use it at a time.
'''

from __future__ import annotations

from interlock.sdk.functions import Progress
from interlock.sdk.tool import ToolError
from interlock.tree.subserver.subserver import Subserver

__all__ = ["Progress", "Subserver", "ToolError"]
