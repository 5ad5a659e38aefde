'''Write a subserver: a program with tools that registers itself with an Interlock node.

    from interlock.tree.subserver import Progress, Subserver, ToolError

    plant = Subserver("plant")

    @plant.tool(latency_class="fast", mutable=False)
    def temperature(sensor: str, unit: str = "C") -> float:
        """What a sensor shows now."""
        if sensor not in SENSORS:
            raise ToolError(f"There is no sensor {sensor}.")    # the model reads this
        return SENSORS[sensor].read(unit)

    @plant.tool(mutable=True, reversible=True, idempotent=True)
    async def open_valve(number: int, percent: int = 100, *, progress: Progress) -> None:
        """Open a valve."""
        ...

    plant.run("wss://node.example.com/ax", token=os.environ["NODE_TOKEN"])

In the node's catalog these are `plant.temperature` and `plant.open_valve`. Where the node is: a
WebSocket (`ws://127.0.0.1:8420/ax`, `wss://…`), a Unix socket (`unix:/path/ax.sock`), or the node
that started this very program (`servers: {plant: {command: ./plant.py --stdio, transport: ax}}`).
`run()` without an address takes it from the command line: an address, or `--stdio`.

- A tool's schema is made from the signature: plain types, `Optional`, `list`, `dict`, `Literal`,
  `msgspec.Struct`; `Annotated[int, msgspec.Meta(description=…, ge=0)]` says more. The docstring is
  the description. Arguments that do not fit never reach the function.
- Plain functions run in a thread, so that they hold up nothing; `async` ones on the loop.
- A text is the result as it is; a dict or Struct is structured; everything else becomes JSON.
  An exception is a result too, one that says what went wrong.
- What `tool(...)` says of a tool (`latency_class`, `mutable`, …) is its MCP-AX capability. Say it:
  a tool that says nothing counts as one that changes things for good.
- `plant.log("warning", "It is hot.")` and `await plant.notify("notifications/…", {...})` go up the
  tree: from inside a tool to that call's caller, else to everybody. `event_id` and `causal_parent`
  (UUIDs) travel with them untouched.
- A lost node is dialled again, for ever, and `backup=[…]` are tried in turn; that it is lost or
  back is logged (`interlock.subserver`), on stderr with `run`. A node that refuses for good, at
  first or later, is the end: `run` exits with the reason.
- `async with plant.connected(url):` is `run` for a program that has a loop of its own. It raises
  InterlockError where `run` would exit.
- The id by which nodes know a subserver again is kept in the state folder (~/.local/state). Only
  one of the same segment at the same node has it at a time.
'''

from __future__ import annotations

from interlock.sdk.functions import Progress
from interlock.sdk.tool import ToolError
from interlock.tree.subserver.subserver import Subserver

__all__ = ["Progress", "Subserver", "ToolError"]
