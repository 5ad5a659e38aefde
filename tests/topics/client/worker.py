"""A participant program for tests."""

from __future__ import annotations

import asyncio
import os
import sys

from interlock.topics.client import Participant

worker = Participant(sys.argv[1], topic="ops", token=os.environ["TOKEN"], name="worker")


@worker.tool(mutable=False)
def whoami() -> int:
    """Return the id of this process."""
    return os.getpid()


@worker.tool()
async def forever() -> None:
    """Run without end."""
    await worker.chat("I have begun.")
    await asyncio.Event().wait()


async def main() -> None:
    async with worker.connected():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
