"""The worker: it stores notes in a folder. It only responds to requests."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from interlock.topics.client import Participant, ToolError

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")
FOLDER = Path(os.environ.get("NOTES", "notes"))

worker = Participant(GATEWAY, topic="workshop", token=os.environ["WORKER_TOKEN"], name="notes")


@worker.tool(mutable=True, reversible=False)
def write_note(title: str, text: str) -> str:
    """Write a note. An existing note is replaced."""
    if not title.isidentifier():
        raise ToolError("A title has letters, digits and _ only.")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{title}.txt").write_text(text, encoding="utf-8")
    return f"wrote {title}"


async def main() -> None:
    async with worker.connected():
        print(f"{worker.id} is in {worker.topic}", flush=True)
        await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(0)
