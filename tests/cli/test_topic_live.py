"""The screen and the participant behind it, without a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from interlock.cli.topic_live import Live
from interlock.topics import Participant
from tests.topics.places import Alone


def seated(alone: Alone) -> Participant:
    """A participant whose place is that one."""
    participant = Participant("wss://n/ws", topic="ops")
    participant._place = alone.place
    return participant


def test_yes_to_what_is_another_by_now_does_nothing() -> None:
    async def main() -> None:
        alone = Alone()
        id = alone.propose("a", "pay", {"to": "the baker"})
        written: list[str] = []
        live = Live(seated(alone), write=written.append)
        live.draw()
        live.typed(b"\ta")
        live.draw()
        assert "the baker" in written[-1]
        # Whatever let it come to that, between the last drawing and the key.
        kept: dict[str, Any] = alone.place.fulfilling._proposals._kept
        kept[id] = replace(kept[id], params=Raw(b'{"name":"pay","arguments":{"to":"me"}}'))
        live.typed(b"y")
        await asyncio.gather(*live._tasks)
        assert alone.said == []
        live.draw()
        assert "not what was shown any more" in written[-1]
        await live.end()

    asyncio.run(main())
