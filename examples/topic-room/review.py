"""The person, without a screen: shows each proposal, and fulfils it if the response is yes.

`interlock topic join workshop` is the more convenient alternative.
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
    """Print a line in one write, because the agent may use the same terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def ask(proposal: Proposal) -> bool:
    """Show a proposal and return whether the person agrees. JSON shows invisible characters."""
    params = json.dumps(json.loads(bytes(proposal.params)))
    recipients = ", ".join(map(ascii, proposal.to)) or "all participants"
    say(f"{proposal.proposer!a} proposes {proposal.method!a} to {recipients}: {params}")
    try:
        answer = input("Fulfil this proposal? [y/N] ")
    except EOFError:
        # Without input, the response is no.
        answer = ""
    if not sys.stdin.isatty():
        # A terminal shows the input by itself.
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
            if await asyncio.to_thread(ask, proposal):
                try:
                    await human.fulfil(proposal)
                except InterlockError as error:
                    say(f"the call failed: {error.message}")
                    return 1
                say("fulfilled")
                return 0
            human.reject(proposal)
            await human.chat("No.", to=[proposal.proposer], correlation_id=proposal.id)
            say("rejected")
            return 0
    return 0


sys.exit(asyncio.run(main()))
