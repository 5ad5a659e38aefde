"""The human's side without a screen: shows each proposal, and fulfils it if the answer is yes.

`interlock topic join workshop` is the comfortable way to do the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from interlock.errors import InterlockError
from interlock.topics import Participant, Proposal

GATEWAY = os.environ.get("GATEWAY", "ws://127.0.0.1:8420/ws")

human = Participant(GATEWAY, topic="workshop", token=os.environ["HUMAN_TOKEN"])


def agreed(proposal: Proposal) -> bool:
    """Whether whoever sits there says yes. All of it is shown: as JSON, nothing can hide in it."""
    params = json.dumps(json.loads(bytes(proposal.params)))
    print(f"{proposal.proposer!a} proposes {proposal.method!a} to {proposal.to!a}: {params}")
    try:
        return input("Shall it be done? [y/N] ").strip().lower() == "y"
    except EOFError:
        # Nobody is there to say yes.
        return False


async def main() -> int:
    events = human.events()
    async with human.connected():
        print(f"{human.id} is in {human.topic}", flush=True)
        async for event in events:
            if not isinstance(event.content, Proposal):
                continue
            proposal = event.content
            if await asyncio.to_thread(agreed, proposal):
                try:
                    await human.fulfil(proposal)
                except InterlockError as error:
                    print(f"it failed: {error.message}", flush=True)
                    return 1
                print("fulfilled", flush=True)
                return 0
            human.reject(proposal)
            await human.chat("No.", to=[proposal.proposer], correlation_id=proposal.id)
            print("rejected", flush=True)
            return 0
    return 0


sys.exit(asyncio.run(main()))
