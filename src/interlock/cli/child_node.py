"""`interlock up --stdio-parent`: a node that was started by its parent and registers with it."""

from __future__ import annotations

import asyncio
import logging

from interlock.app.run import REGISTER_DELAY_SECONDS, NodeRun
from interlock.cli.config_warnings import collect_config_warnings, collect_tool_warnings
from interlock.core.config import ConfigError
from interlock.terminal import log_lines
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.feature_reports import ChildRunner, load_reports


async def run_as_child(source: ConfigSource) -> None:
    """Run a child node until its parent disconnects or a signal comes. Raises InterlockError."""
    runner = _create_runner()
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(
        lambda: runner.load(source),
        base_dir=source.base_dir,
        config_path=source.path,
        listens=False,
        find_warnings=lambda config: collect_config_warnings(config, source),
        find_tool_warnings=lambda config, offerings: collect_tool_warnings(
            config, source, offerings
        ),
    )
    node = await run.start()
    # The parent is to see everything at once that comes soon.
    await node.until_settled(REGISTER_DELAY_SECONDS)
    registration_task = asyncio.ensure_future(runner.stay_registered(node))
    stop_task = asyncio.ensure_future(run.stopping.wait())
    try:
        await asyncio.wait({registration_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        if registration_task.done():
            registration_task.result()
    finally:
        registration_task.cancel()
        stop_task.cancel()
        await run.stop()


def _create_runner() -> ChildRunner:
    for reports in load_reports():
        runner = reports.create_child_runner()
        if runner is not None:
            return runner
    raise ConfigError.of("this build cannot register with a parent", "remove --stdio-parent")
