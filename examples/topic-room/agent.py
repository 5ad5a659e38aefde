"""Wants something done, and may not do it: it is refused, proposes it, and waits for an outcome."""

from __future__ import annotations

import asyncio
import os
import sys

from interlock.errors import InterlockError
from interlock.topics import Chat, Event, Participant, Presence, Refused

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")
NEEDED = {"worker", "human"}
NOTE = {"name": "write_note", "arguments": {"title": "greeting", "text": "Good morning."}}

agent = Participant(GATEWAY, topic="workshop", token=os.environ["AGENT_TOKEN"])


async def until_all_are_there() -> None:
    """Nobody fulfils what was proposed before it came."""
    came = asyncio.Event()
    agent.on(Presence, lambda _: came.set())
    while not agent.participants.keys() >= NEEDED:
        came.clear()
        await came.wait()


async def main() -> int:
    async with agent.connected():
        print(f"{agent.id} may send: {', '.join(agent.capabilities)}", flush=True)
        await until_all_are_there()
        try:
            await agent.request("worker", "tools/call", NOTE)
        except Refused as refused:
            print(f"asked for it: {refused.message}", flush=True)
        proposal = await agent.propose("worker", "tools/call", NOTE)
        print("proposed it, and waits", flush=True)
        waiting = asyncio.ensure_future(proposal.outcome())

        def heard(event: Event) -> None:
            if event.sender == "human" and event.correlation_id == proposal.id:
                print(f"{event.sender} says: {event.content.text!r}", flush=True)
                waiting.cancel()

        agent.on(Chat, heard)
        try:
            result = await waiting
        except asyncio.CancelledError:
            return 1
        except InterlockError as error:
            print(f"nothing came of it: {error.message}", flush=True)
            return 1
        print(f"it was done: {result['content'][0]['text']}", flush=True)
        return 0


sys.exit(asyncio.run(main()))
