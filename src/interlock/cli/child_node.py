"""`interlock up --stdio-parent`: a node that another node started, and that registers with it."""

from __future__ import annotations

import asyncio
import logging

from interlock.app.run import REGISTERED_AFTER, NodeRun
from interlock.cli.config_warnings import collect_config_warnings, collect_tool_warnings
from interlock.core.config import ConfigError
from interlock.terminal import log_lines
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.feature_reports import ChildRunner, load_reports


async def run_as_child(source: ConfigSource) -> None:
    """Run until the parent is gone, or a signal comes. Raises InterlockError."""
    child = _child()
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(
        lambda: child.load(source),
        base_dir=source.base_dir,
        watched=source.path,
        listening=False,
        doubts=lambda config: collect_config_warnings(config, source),
        tool_doubts=lambda config, offerings: collect_tool_warnings(config, source, offerings),
    )
    node = await run.start()
    # The parent is to see everything at once that comes soon.
    await node.until_settled(REGISTERED_AFTER)
    registered = asyncio.ensure_future(child.stay_registered(node))
    stopping = asyncio.ensure_future(run.stopping.wait())
    try:
        await asyncio.wait({registered, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if registered.done():
            registered.result()
    finally:
        registered.cancel()
        stopping.cancel()
        await run.stop()


def _child() -> ChildRunner:
    for reports in load_reports():
        found = reports.child()
        if found is not None:
            return found
    raise ConfigError.of("this build cannot register with a parent", "leave --stdio-parent out")
