"""Many subservers in one process, each registered over a channel of its own.

    python -m bench.crowd_process ws://127.0.0.1:8420/ax 200 50

They are written with `interlock.tree.subserver`, as a user's would be, and reconnect by themselves
when the node was away. A tool answers with its whole name, so that a caller sees whom it reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from uuid import UUID, uuid5

import uvloop

from bench.crowd import segment, tool
from interlock.tree.subserver import Subserver

FAMILY = UUID("c9a7e1b6-5b0e-4a5c-9d0f-0f5a3f1f7a11")
"""Of which the ids are made: the same in every run, without a folder to keep them in."""


def answering(name: str) -> Callable[[str], str]:
    def answer(text: str) -> str:
        """Say who this is, and the text."""
        return f"{name}: {text}"

    return answer


def member(number: int, tools: int) -> Subserver:
    own = segment(number)
    subserver = Subserver(own, subserver_id=str(uuid5(FAMILY, own)))
    for one in range(tools):
        offer = subserver.tool(name=tool(one), mutable=False, latency_class="fast")
        offer(answering(f"{own}.{tool(one)}"))
    return subserver


async def stay(subserver: Subserver, url: str, over: asyncio.Event) -> None:
    async with subserver.connect(url):
        await over.wait()


async def serve(url: str, subservers: int, tools: int) -> None:
    everybody = [member(number, tools) for number in range(subservers)]
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    print(f"begun {time.time():.3f}", flush=True)
    await asyncio.gather(*(stay(one, url, over) for one in everybody))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
