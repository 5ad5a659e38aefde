"""Wants something done, and may not do it: it is refused, proposes it, and waits for an outcome."""

from __future__ import annotations

import asyncio
import os
import sys

from interlock.errors import InterlockError
from interlock.topics.client import Chat, Event, Participant, Presence, SendError

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")
NEEDED = {"worker", "human"}
NOTE = {"name": "write_note", "arguments": {"title": "greeting", "text": "Good morning."}}

agent = Participant(GATEWAY, topic="workshop", token=os.environ["AGENT_TOKEN"])


def say(line: str) -> None:
    """In one piece: others may write to the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def until_all_are_there() -> None:
    """Nobody fulfils what was proposed before it came."""
    came = asyncio.Event()
    agent.on(Presence, lambda _: came.set())
    while not agent.participants.keys() >= NEEDED:
        came.clear()
        await came.wait()


async def main() -> int:
    async with agent.connected():
        say(f"{agent.id} may send: {', '.join(agent.capabilities)}")
        await until_all_are_there()
        try:
            await agent.request("worker", "tools/call", NOTE)
        except SendError as refused:
            say(f"asked for it: {refused.message}")
        proposal = await agent.propose("worker", "tools/call", NOTE)
        say("proposed it, and waits")
        waiting = asyncio.ensure_future(proposal.outcome())

        def heard(event: Event) -> None:
            if event.sender == "human" and event.correlation_id == proposal.id:
                say(f"{event.sender} says: {event.content.text!r}")
                waiting.cancel()

        agent.on(Chat, heard)
        try:
            result = await waiting
        except asyncio.CancelledError:
            return 1
        except InterlockError as error:
            say(f"nothing came of it: {error.message}")
            return 1
        say(f"it was done: {result['content'][0]['text']}")
        return 0


sys.exit(asyncio.run(main()))
