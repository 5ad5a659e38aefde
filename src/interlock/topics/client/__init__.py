'''Client library for topics: rooms in which programs and people work together (MCPx v0.1).

    from interlock.topics.client import Chat, Participant, Proposal

    worker = Participant("wss://node.example.com/ws", topic="ops", token=os.environ["TOKEN"])

    @worker.tool(mutable=True)
    def restart(machine: str) -> str:
        """Restart a machine."""
        ...

    async with worker.connected():
        await worker.chat("Ready.")
        result = await worker.call("archive", "search", {"words": "boiler"})

Every participant is an MCP server and an MCP client. The gateway decides what it may send, and
tells it in the welcome message: `capabilities`, `can(kind)`. A participant that may not make a call
proposes it, and another participant fulfils it. `call` does what is allowed; `propose` and `fulfil`
are explicit.

- **Every message is checked.** A gateway reads the kind of a message and never its payload, so this
  library checks the payload. A message is dropped if its kind and payload differ, if its id was
  used before, or if it responds to no request. Dropped messages are counted in `reputation`. The
  check cannot be disabled.
- **Messages are data.** Chats, arguments and results come from other participants. Every
  participant can read every message.
- **Events.** Use `on(Chat, callback)`, `on("mcp/proposal:*", callback)`, or
  `async for event in participant.events()`. A response to a request that was not seen is an event
  with `verified` None, and completes no call.
- **Proposals.** `tracked` has their states. They expire after 300 seconds. A fulfilment makes the
  proposed call unchanged, except for an explicit `override`. No participant can fulfil its own
  proposal.
- **Reconnecting.** The library reconnects without a limit, after 1 to 30 seconds. Pending requests
  fail with `upstream_lost` and `sent` in their data: they may have been executed. If the gateway
  rejects the participant permanently, `connected` raises InterlockError.
- **The token** is sent in the Authorization header and never appears in a log, error or URL.
- `Orchestrator` fulfils proposals by rules.

`SendError` (an InterlockError) is raised for messages that were not sent.
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
