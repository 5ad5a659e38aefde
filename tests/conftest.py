"""What every test may use. What a test needs from the machine is in `tests/support/programs.py`."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from interlock.app.features import load_features
from tests.support import async_tests, ports
from tests.support.node_fixtures import (  # noqa: F401 - fixtures for all tests
    shared_node,
    start_node,
)

# `make test` uses "ci": the same examples every time, so that a failure can be repeated. It tries
# half as many as usual; a test that needs more sets its own number.
# `make check` tries few of them.
# A bare `pytest` uses "dev": new examples every time. No profile has a deadline: machines are busy.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=50)
settings.register_profile("check", settings.get_profile("ci"), max_examples=10)
settings.register_profile("dev", deadline=None)
settings.load_profile("dev")

# As every program does: tests read configs with the sections of features.
load_features()

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "app", "conformance", "bench", "cli", "behaviour", "demo", "drivers", "core", "contracts",
    "tree", "trust",
)  # fmt: skip
"""The folders whose tests start programs and wait for them."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in whatever a script starts in the background: programs under test would inherit it, and
    # nothing could interrupt them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # As under `nohup`: a node under test would then stay when its terminal is closed.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of features that this build lacks. Where several share the work, nobody is to
    begin with the longest files at the end."""
    built = {feature.name for feature in load_features()}
    for item in items:
        async_tests.add_checks(item)
        for mark in item.iter_markers("feature"):
            for name in set(mark.args) - built:
                item.add_marker(pytest.mark.skip(reason=f"this build has no {name}"))
    if not hasattr(config, "workerinput"):
        return

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(TESTS).parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect the tests without the garbage collector: almost everything they make stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what collecting made out of every later look of the garbage collector.

    Many tests collect garbage to see that nothing is left behind. What they made is looked at all
    the same; walking past thousands of collected tests, which stay to the end, took them longer.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """After the last test of a file, do the same with what it left: imported modules and caches."""
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return async_tests.loop_factories(item)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail on processes and files that a test leaves behind."""
    from tests.support.upstreams import leak_check

    with leak_check():
        yield


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    return ports.free_port()
