"""Applies a config to all components of a node or to none, and stops the components."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from interlock.core.config import Config
from interlock.core.feature import Component

_log: Final = logging.getLogger("interlock.node")

StopStep = tuple[str, Callable[[], Awaitable[None] | None]]
"""The name and the function of a step."""


class Lifecycle:
    """The components of one node by name, in the order in which they take a new config."""

    def __init__(self, components: Mapping[str, Component]) -> None:
        self._components = dict(components)
        self._reload = asyncio.Lock()

    def check(self, config: Config) -> None:
        """Raise InterlockError if any component cannot run with `config`. Changes nothing."""
        for component in self._components.values():
            component.check(config)

    async def apply(self, old: Config, new: Config) -> None:
        """Switch every component from `old` to `new`, or none.

        Raises the error of a component after all components that were reached have `old` again.
        """
        async with self._reload:
            self.check(new)
            reached: list[str] = []
            try:
                for name, component in self._components.items():
                    reached.append(name)
                    await component.apply(old, new)
            except BaseException:
                # In the same order: later components read from earlier ones.
                await self._restore(reached, old, new)
                raise

    async def _restore(self, names: Iterable[str], old: Config, new: Config) -> None:
        for name in names:
            try:
                await self._components[name].apply(new, old)
            except Exception:
                # The others still get their previous config back.
                _log.exception("%s: cannot return to the previous config", name)


async def stop_each(steps: Iterable[StopStep]) -> None:
    """Run all steps in order. A step that fails is logged and does not prevent the others."""
    for name, stop in steps:
        try:
            pending = stop()
            if pending is not None:
                await pending
        except Exception:
            _log.exception("%s: cannot stop it", name)
