"""Repeated listing of tools because a caller requested an unlisted tool."""

from __future__ import annotations

import asyncio

import pytest

from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import RELIST_INTERVAL_SECONDS
from tests.core.upstreams.servers.http_server import Streamable
from tests.support.clock import ManualClock
from tests.support.upstreams import SupervisorHarness, run_supervisor, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


def search(one: SupervisorHarness) -> asyncio.Future[int] | None:
    """Return the number of lists at the end of the search, or None without a search."""
    over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    searches = one.supervisor.read_tools(lambda: over.set_result(one.supervisor.lists))
    return over if searches else None


async def test_searches_share_one_listing() -> None:
    clock = ManualClock()
    async with (
        Streamable("session") as server,
        run_supervisor(ServerConfig(url=server.url()), clock=clock) as upstream,
    ):
        await upstream.ready()
        server.toolbox.change("echo", "new")
        first, second = search(upstream), search(upstream)
        assert first is not None
        assert second is not None
        assert [await with_timeout(first), await with_timeout(second)] == [2, 2]
        assert upstream.listed[-1] == ["echo", "new"]
        # The server announced nothing, so nobody may be told that it did.
        assert upstream.supervisor.announced == frozenset()
        clock.now += RELIST_INTERVAL_SECONDS - 0.001
        assert search(upstream) is None
        clock.now += 0.001
        third = search(upstream)
        assert third is not None
        await with_timeout(third)
        assert server.toolbox.lists == 3


@pytest.mark.parametrize("how", ["fails", "is lost", "is ended"])
async def test_search_ends_when_listing_fails(how: str) -> None:
    clock = ManualClock()
    async with Streamable("session") as server:
        async with run_supervisor(ServerConfig(url=server.url()), clock=clock) as upstream:
            await upstream.ready()
            if how == "fails":
                server.toolbox.tools = None
                server.toolbox.pages = {None: {"tools": 7}}
            over = search(upstream)
            assert over is not None
            if how == "is lost":
                peer = upstream.supervisor.upstream_client
                assert peer is not None
                await peer.close()
            if how == "is ended":
                await upstream.supervisor.end()
            await with_timeout(over)
            # Nobody keeps on trying for a caller that has had its answer.
            if how == "fails":
                assert not upstream.supervisor._list_reader._requested.is_set()
        assert search(upstream) is None
