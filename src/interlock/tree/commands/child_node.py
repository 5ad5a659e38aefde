"""A node that its parent started: it registers on stdin and stdout, and listens nowhere else."""

from __future__ import annotations

import asyncio
import logging
import os
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from interlock.app.run import REGISTERED_AFTER, NodeRun
from interlock.cli.config_warnings import doubts_now, tool_doubts_now
from interlock.core.config import Config, ConfigError
from interlock.core.paths import state_home
from interlock.protocol.mcpax import ID_VARIABLE, SEGMENT_VARIABLE, is_segment
from interlock.terminal import log_lines
from interlock.terminal.config_source import ConfigSource
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig

_log = logging.getLogger("interlock.node")


async def run_as_child(source: ConfigSource) -> None:
    """Run until the parent is gone, or a signal comes. Raises InterlockError."""
    segment = os.environ.get(SEGMENT_VARIABLE, "")
    if not is_segment(segment):
        raise ConfigError.of(
            f"--stdio-parent is for nodes that another one starts; ${SEGMENT_VARIABLE} is not set",
            "give the parent a server with `transport: ax` and this command line",
        )
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(
        lambda: _with_own_folder(source),
        base_dir=source.base_dir,
        watched=source.path,
        listening=False,
        doubts=lambda config: doubts_now(config, source),
        tool_doubts=lambda config, offerings: tool_doubts_now(config, source, offerings),
    )
    node = await run.start()
    # The parent is to see everything at once that comes soon.
    await node.until_settled(REGISTERED_AFTER)
    registrant = node.component(Tree).register_on_stdio(segment)
    over = asyncio.ensure_future(registrant.until_over())
    stopping = asyncio.ensure_future(run.stopping.wait())
    try:
        await asyncio.wait({over, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
        stopping.cancel()
        await run.stop()


def _with_own_folder(source: ConfigSource) -> Config:
    """The config, with a state folder of its own: by their addresses, which they do not listen on,
    all children would have the same."""
    config = source.load()
    if config.optional_section(ParentConfig) is not None:
        raise ConfigError.of(
            "`parent` is in the config, and --stdio-parent says that the parent started this node",
            "leave one of the two out",
        )
    if config.state_dir is not None:
        return config
    path = Path(source.path or "demo").absolute()
    # Two parents may start the same one.
    whole = os.fsencode(path) + os.environ.get(ID_VARIABLE, "").encode()
    name = f"child-{path.stem}-{blake2b(whole, digest_size=4).hexdigest()}"
    return replace(config, state_dir=str(state_home(os.environ) / name))
