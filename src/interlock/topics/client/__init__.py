'''Take part in a topic: a room in which programs and people work together (MCPx v0.1).

    from interlock.topics.client import Chat, Participant, Proposal

    worker = Participant("wss://node.example.com/ws", topic="ops", token=os.environ["TOKEN"])

    @worker.tool(mutable=True)
    def restart(machine: str) -> str:
        """Restart a machine."""
        ...

    async with worker.connected():
        await worker.chat("Here I am.")
        found = await worker.call("archive", "search", {"words": "boiler"})

Every participant is an MCP server and a client. What it may send is decided by the gateway and told
in its welcome: `capabilities`, `can(kind)`. Who may not make a call proposes it, and somebody who
may fulfils it: `call` does either, `propose` and `fulfil` say which.

- **Nothing is believed unchecked.** A gateway looks at the kind of a message and never into it, so
  this library does: whose kind says one tool and whose payload another, whose id was used before,
  who answers what it was not asked, is dropped before anybody hears of it, and counted:
  `reputation`. There is no switch for that.
- **What was said is data.** Chats, arguments and results come from others. Everybody in the topic
  can hear everything.
- **Events.** `on(Chat, callback)`, `on("mcp/proposal:*", callback)`, or
  `async for event in participant.events()`. A response whose request nobody here has seen is an
  event with `verified` None, and settles nothing.
- **Proposals.** `tracked` says what became of them. They are over after 300 seconds. A fulfilment
  is what was proposed, but for an explicit `override`; nobody fulfils its own.
- **Reconnecting.** A lost gateway is dialled again, for ever, after 1 to 30 seconds. Requests under
  way then fail with `upstream_lost` and `sent` in their data: they may have been done. A gateway
  that refuses for good is the end: `connected` raises InterlockError.
- **The token** is sent in the Authorization header and is in no log, error or URL.
- `Orchestrator` fulfils by rules what a human would have fulfilled.

`SendError` (an InterlockError) is raised for what was not sent at all.
'''

from __future__ import annotations

from interlock.sdk.functions import Progress
from interlock.sdk.tool import ToolError
from interlock.topics.client.errors import SendError
from interlock.topics.client.events import Event, Events
from interlock.topics.client.orchestrator import Orchestrator, ProposalRule
from interlock.topics.client.participant import Participant, ParticipantStatus
from interlock.topics.client.proposals import Proposal
from interlock.topics.client.tools import RequestServer
from interlock.topics.wire.payloads import (
    Chat,
    Notification,
    Presence,
    Problem,
    Request,
    Response,
    Welcome,
)
from interlock.topics.wire.proposals import TrackedProposal

__all__ = [
    "Chat",
    "Event",
    "Events",
    "Notification",
    "Orchestrator",
    "Participant",
    "ParticipantStatus",
    "Presence",
    "Problem",
    "Progress",
    "Proposal",
    "ProposalRule",
    "Request",
    "RequestServer",
    "Response",
    "SendError",
    "ToolError",
    "TrackedProposal",
    "Welcome",
]
