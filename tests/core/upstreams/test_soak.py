"""Repeated kills under load: no wrong result, no pending call, no leak."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.transports.stdio import StdioTransport
from tests.core.upstreams.servers.http_server import Streamable
from tests.support.upstreams import SupervisorHarness, run, stdio_server, text, with_timeout

KILLS = 60


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_survives_repeated_kills_under_load(loop: str) -> None:
    """`run` compares open files, tasks and children before and after."""

    async def body() -> None:
        chance = random.Random(1)
        servers = [Streamable("session", get="stream", announces=True), Streamable("stateless")]
        for server in servers:
            await server.start()
        configs = [
            stdio_server("--eras", "session", "--announces"),
            stdio_server("--eras", "stateless", "--announces", "--grandchild", "here"),
            *(ServerConfig(url=server.url(), connections=4) for server in servers),
        ]
        every = [SupervisorHarness(config, key=f"up{n}") for n, config in enumerate(configs)]
        for one in every:
            one.supervisor.begin()
        for one in every:
            await one.ready()
        answered = failed = target = 0
        enough = asyncio.Event()
        over = False

        async def load(number: int) -> None:
            nonlocal answered, failed
            count = 0
            while not over:
                one = every[(number + count) % len(every)]
                message = f"{number}/{count}"
                count += 1
                try:
                    assert text(await with_timeout(one.start("echo", {"text": message}))) == message
                    answered += 1
                    if answered >= target:
                        enough.set()
                except UpstreamLostError:
                    failed += 1
                    await with_timeout(one.ready())

        workers = [asyncio.create_task(load(number)) for number in range(12)]
        for _ in range(KILLS):
            victim = chance.randrange(len(every))
            one = every[victim]
            await one.ready()
            before = one.supervisor.restarts
            peer = one.supervisor.upstream_client
            assert peer is not None
            if isinstance(peer.transport, StdioTransport):
                os.kill(peer.transport.pid or 0, signal.SIGKILL)
                await one.until(lambda one=one, before=before: one.supervisor.restarts > before)
            else:
                server = servers[victim - 2]
                server.cut_connections()
                server.forget_sessions()
            await one.ready()
            target = answered + 20
            enough.clear()
            await with_timeout(enough.wait())
        over = True
        await with_timeout(asyncio.gather(*workers))
        assert answered >= KILLS * 20
        assert failed > 0
        for one in every:
            assert one.supervisor.upstream_client is not None
            assert not [
                x
                for x in one.supervisor.upstream_client.pending.values()
                if x.method == "tools/call"
            ]
        await with_timeout(asyncio.gather(*(supervisor.supervisor.end() for supervisor in every)))
        for server in servers:
            await server.stop()

    run(body, loop=loop)
