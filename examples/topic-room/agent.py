"""The agent: its call is rejected, so it proposes the call and waits for the outcome."""

from __future__ import annotations

import asyncio
import os
import sys

from interlock.errors import InterlockError
from interlock.topics.client import Chat, Event, Participant, Presence, SendError

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")
REQUIRED = {"worker", "human"}
NOTE = {"name": "write_note", "arguments": {"title": "greeting", "text": "Good morning."}}

agent = Participant(GATEWAY, topic="workshop", token=os.environ["AGENT_TOKEN"])


def say(line: str) -> None:
    """Print a line in one write, because other programs may use the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def wait_for_participants() -> None:
    """Wait for the other participants: they do not get earlier proposals."""
    joined = asyncio.Event()
    agent.on(Presence, lambda _: joined.set())
    while not agent.participants.keys() >= REQUIRED:
        joined.clear()
        await joined.wait()


async def main() -> int:
    async with agent.connected():
        say(f"{agent.id} may send: {', '.join(agent.capabilities)}")
        await wait_for_participants()
        try:
            await agent.request("worker", "tools/call", NOTE)
        except SendError as error:
            say(f"the call was rejected: {error.message}")
        proposal = await agent.propose("worker", "tools/call", NOTE)
        say("proposed the call, waiting for the outcome")
        outcome = asyncio.ensure_future(proposal.outcome())

        def on_chat(event: Event) -> None:
            if event.sender == "human" and event.correlation_id == proposal.id:
                say(f"{event.sender} says: {event.content.text!r}")
                outcome.cancel()

        agent.on(Chat, on_chat)
        try:
            result = await outcome
        except asyncio.CancelledError:
            return 1
        except InterlockError as error:
            say(f"no result: {error.message}")
            return 1
        say(f"result: {result['content'][0]['text']}")
        return 0


sys.exit(asyncio.run(main()))
