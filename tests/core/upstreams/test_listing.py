"""Listing of everything that an upstream offers: kinds, pages and failed lists."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.config import ServerConfig, resolve_server
from interlock.core.upstreams import listing
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.listing import RawOffering, list_offering
from interlock.errors import UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, InterlockError
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import OWN_INFO, SERVERS

pytestmark = pytest.mark.usefixtures("no_leaks")

ERAS = ("session", "stateless")
EVERYTHING: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
LISTS: dict[str, Any] = {
    "tools/list": {"first": {"tools": [{"name": "t"}]}},
    "prompts/list": {"first": {"prompts": [{"name": "p"}]}},
    "resources/list": {"first": {"resources": [{"uri": "r:1"}]}},
    "resources/templates/list": {"first": {"resourceTemplates": [{"uriTemplate": "r:{x}"}]}},
}


@asynccontextmanager
async def open_peer(
    lists: dict[str, Any], capabilities: dict[str, Any] = EVERYTHING, era: str = "session"
) -> AsyncIterator[UpstreamClient]:
    settings = json.dumps({"era": era, "capabilities": capabilities, "lists": lists})
    args = ["-S", str(SERVERS / "offer_server.py"), settings]
    connector = Connector(
        "up",
        ServerConfig(command=sys.executable, args=args),
        node_info=OWN_INFO,
        resolve=lambda item: resolve_server(item, environ=os.environ, base_dir=Path.cwd()),
        clock=asyncio.get_running_loop().time,
    )
    peer = await connector.connect()
    try:
        yield peer
    finally:
        await peer.close()


async def list_requested(peer: UpstreamClient) -> list[str]:
    """Return the lists that the server was asked for."""
    outcome = await peer.request("test/asked")
    settings: list[str] = json.loads(bytes(outcome.result))["asked"]
    return sorted(method for method in settings if method.endswith("/list"))


def decode_lists(offer: RawOffering) -> dict[str, list[Any]]:
    lists = {name: getattr(offer, name) for name in ("tools", "prompts", "resources", "templates")}
    return {name: [json.loads(bytes(raw)) for raw in raws] for name, raws in lists.items()}


ALL_ENTRIES = {
    "tools": [{"name": "t"}],
    "prompts": [{"name": "p"}],
    "resources": [{"uri": "r:1"}],
    "templates": [{"uriTemplate": "r:{x}"}],
}


@pytest.mark.parametrize("era", ERAS)
async def test_lists_all_kinds(era: str) -> None:
    async with open_peer(LISTS, era=era) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT)
        assert decode_lists(offer) == ALL_ENTRIES
        assert offer.problems == {}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("capabilities", "verbs"),
    [
        ({}, []),
        ({"tools": {}}, ["tools/list"]),
        ({"prompts": {"listChanged": True}, "logging": {}}, ["prompts/list"]),
        ({"resources": {}}, ["resources/list", "resources/templates/list"]),
        ({"tools": {}, "prompts": None, "resources": False}, ["tools/list"]),
    ],
)
async def test_lists_only_announced_kinds(
    era: str, capabilities: dict[str, Any], verbs: list[str]
) -> None:
    async with open_peer(LISTS, capabilities, era) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT)
        assert await list_requested(peer) == verbs
        result = sum(len(raws) for raws in decode_lists(offer).values())
        assert result == len(verbs)


async def test_reads_every_page() -> None:
    pages = {
        "prompts/list": {
            "first": {"prompts": [{"name": "a"}], "nextCursor": ""},
            "": {"prompts": [{"name": "b"}], "nextCursor": "2"},
            "2": {"prompts": [{"name": "c"}], "nextCursor": None},
        },
        "resources/templates/list": {
            "first": {"nextCursor": "next"},
            "next": {"resourceTemplates": [{"uriTemplate": "z:{z}"}]},
        },
    }

    async with open_peer({**LISTS, **pages}) as peer:
        offer = decode_lists(await list_offering(peer, timeout=HANG_TIMEOUT))
        assert [item["name"] for item in offer["prompts"]] == ["a", "b", "c"]
        assert offer["templates"] == [{"uriTemplate": "z:{z}"}]


async def test_circular_pages_end() -> None:
    circle = {
        "first": {"prompts": [1], "nextCursor": "a"},
        "a": {"prompts": [2], "nextCursor": "b"},
        "b": {"prompts": [3], "nextCursor": "a"},
    }

    async with open_peer({**LISTS, "prompts/list": circle}) as peer:
        assert decode_lists(await list_offering(peer, timeout=HANG_TIMEOUT))["prompts"] == [1, 2, 3]


async def test_limits_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MAX_ENTRIES", 5)
    endless = {"first": {"resources": [1, 2, 3], "nextCursor": "0"}} | {
        str(n): {"resources": [1, 2, 3], "nextCursor": str(n + 1)} for n in range(10)
    }

    async with open_peer({**LISTS, "resources/list": endless}) as peer:
        assert len(decode_lists(await list_offering(peer, timeout=HANG_TIMEOUT))["resources"]) == 6


def failing_pages(code: int = -32603, message: str = "out of order") -> dict[str, Any]:
    return {"first": {"error": {"code": code, "message": message}}}


FAILURES = {
    "an error": (failing_pages(), "could not list its {words}: out of order"),
    "no list": ({"first": {"{member}": 5}}, "sent an invalid result of `{verb}`"),
    "a bad cursor": ({"first": {"nextCursor": 5}}, "sent an invalid result of `{verb}`"),
}
WORDS = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resource templates"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("verb", LISTS)
async def test_failed_list_does_not_hide_others(verb: str, failure: str) -> None:
    pages, sentence = FAILURES[failure]
    [member] = LISTS[verb]["first"]
    pages = json.loads(json.dumps(pages).replace("{member}", member))
    name, message = WORDS[verb]

    async with open_peer({**LISTS, verb: pages}) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT)
        assert decode_lists(offer) == {**ALL_ENTRIES, name: []}
        [(where, problem)] = offer.problems.items()
        assert (where, problem.failure) == (name, UPSTREAM_PROTOCOL)
        assert sentence.format(words=message, verb=verb) in problem.message


async def test_unanswered_list_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_peer({**LISTS, "prompts/list": {"first": None}}) as peer:
        timeouts: list[asyncio.Timeout] = []
        real = asyncio.timeout

        def timeout(seconds: float | None) -> asyncio.Timeout:
            timeouts.append(real(seconds))
            return timeouts[-1]

        monkeypatch.setattr(asyncio, "timeout", timeout)
        reading = asyncio.ensure_future(list_offering(peer, timeout=3600))
        # The server answers in order: its answer about itself follows the three lists.
        while len(await list_requested(peer)) < len(LISTS):
            pass
        for item in timeouts:
            with suppress(RuntimeError):  # this one has ended
                item.reschedule(asyncio.get_running_loop().time())
        offer = await reading
        assert decode_lists(offer) == {**ALL_ENTRIES, "prompts": []}
        assert offer.problems["prompts"].failure is UPSTREAM_UNAVAILABLE
        assert "did not list its prompts within 3600 s" in offer.problems["prompts"].message
        assert not peer.pending


@pytest.mark.parametrize("verb", LISTS)
async def test_unknown_list_method_means_empty_list(verb: str) -> None:
    async with open_peer({item: LISTS[item] for item in LISTS if item != verb}) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT)
        assert decode_lists(offer) == {**ALL_ENTRIES, WORDS[verb][0]: []}
        assert offer.problems == {}


async def test_reports_error_when_nothing_is_readable() -> None:
    async with open_peer(dict.fromkeys(LISTS, failing_pages())) as peer:
        with pytest.raises(InterlockError, match="up could not list its tools: out of order"):
            await list_offering(peer, timeout=HANG_TIMEOUT)
    with pytest.raises(InterlockError):
        await list_offering(peer, timeout=HANG_TIMEOUT)


# --- again ---

BEFORE = RawOffering(
    tools=[Raw(b'"old"')], prompts=[Raw(b'"old"')], resources=[Raw(b'"old"')],
    templates=[Raw(b'"old"')],
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "verbs", "new"),
    [
        ("tools", ["tools/list"], {"tools"}),
        ("prompts", ["prompts/list"], {"prompts"}),
        (
            "resources",
            ["resources/list", "resources/templates/list"],
            {"resources", "templates"},
        ),
    ],
)
async def test_lists_only_requested_kinds(kind: str, verbs: list[str], new: set[str]) -> None:
    async with open_peer(LISTS) as peer:
        offer = await list_offering(
            peer, timeout=HANG_TIMEOUT, kinds=frozenset({kind}), before=BEFORE
        )
        assert await list_requested(peer) == verbs
        assert decode_lists(offer) == {
            name: ALL_ENTRIES[name] if name in new else ["old"] for name in ALL_ENTRIES
        }


async def test_keeps_unreadable_list_and_retries_it() -> None:
    async with open_peer({**LISTS, "prompts/list": failing_pages()}) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT, before=BEFORE)
        assert decode_lists(offer) == {**ALL_ENTRIES, "prompts": ["old"]}
    async with open_peer(LISTS) as peer:
        again = await list_offering(
            peer, timeout=HANG_TIMEOUT, kinds=frozenset({"tools"}), before=offer
        )
        assert await list_requested(peer) == ["prompts/list", "tools/list"]
        assert decode_lists(again) == ALL_ENTRIES
        assert again.problems == {}


async def test_removes_kinds_no_longer_announced() -> None:
    async with open_peer(LISTS, {"tools": {}}) as peer:
        offer = await list_offering(peer, timeout=HANG_TIMEOUT, before=BEFORE)
        assert decode_lists(offer) == {"tools": ALL_ENTRIES["tools"]} | {
            name: [] for name in ("prompts", "resources", "templates")
        }
