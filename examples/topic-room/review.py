"""The human's side without a screen: shows each proposal, and fulfils it if the answer is yes.

`interlock topic join workshop` is the comfortable way to do the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from interlock.errors import InterlockError
from interlock.topics.client import Participant, Proposal

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")

human = Participant(GATEWAY, topic="workshop", token=os.environ["HUMAN_TOKEN"])


def say(line: str) -> None:
    """In one piece: the agent may write to the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def agreed(proposal: Proposal) -> bool:
    """Whether whoever sits there says yes. All of it is shown: as JSON, nothing can hide in it."""
    params = json.dumps(json.loads(bytes(proposal.params)))
    whom = ", ".join(map(ascii, proposal.to)) or "everybody"
    say(f"{proposal.proposer!a} proposes {proposal.method!a} to {whom}: {params}")
    try:
        answer = input("Shall it be done? [y/N] ")
    except EOFError:
        # Nobody is there to say yes.
        answer = ""
    if not sys.stdin.isatty():
        # A terminal shows what was typed, and ends the line.
        say(answer)
    return answer.strip().lower() == "y"


async def main() -> int:
    events = human.events()
    async with human.connected():
        say(f"{human.id} is in {human.topic}")
        async for event in events:
            if not isinstance(event.content, Proposal):
                continue
            proposal = event.content
            if await asyncio.to_thread(agreed, proposal):
                try:
                    await human.fulfil(proposal)
                except InterlockError as error:
                    say(f"it failed: {error.message}")
                    return 1
                say("it was fulfilled")
                return 0
            human.reject(proposal)
            await human.chat("No.", to=[proposal.proposer], correlation_id=proposal.id)
            say("it was rejected")
            return 0
    return 0


sys.exit(asyncio.run(main()))
