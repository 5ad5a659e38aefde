"""A node that its parent started: it registers on stdin and stdout, and listens nowhere else."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from interlock.core.config import Config, ConfigError
from interlock.core.paths import state_home
from interlock.protocol.mcpax import ID_VARIABLE, SEGMENT_VARIABLE, is_segment
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.feature_reports import Child, Components
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig


class StdioChild(Child):
    """A child on the stdio of its parent."""

    def __init__(self) -> None:
        """Raises ConfigError: no parent started this program."""
        self._segment = os.environ.get(SEGMENT_VARIABLE, "")
        if not is_segment(self._segment):
            raise ConfigError.of(
                "--stdio-parent is for nodes that another one starts; "
                f"${SEGMENT_VARIABLE} is not set",
                "give the parent a server with `transport: ax` and this command line",
            )

    def load(self, source: ConfigSource) -> Config:
        """The config, with a state folder of its own: by their addresses, which they do not listen
        on, all children would have the same."""
        config = source.load()
        if config.optional_section(ParentConfig) is not None:
            raise ConfigError.of(
                "`parent` is in the config, and --stdio-parent says that the parent started this "
                "node",
                "leave one of the two out",
            )
        if config.state_dir is not None:
            return config
        path = Path(source.path or "demo").absolute()
        # Two parents may start the same one.
        whole = os.fsencode(path) + os.environ.get(ID_VARIABLE, "").encode()
        name = f"child-{path.stem}-{blake2b(whole, digest_size=4).hexdigest()}"
        return replace(config, state_dir=str(state_home(os.environ) / name))

    async def stay_registered(self, node: Components) -> None:
        await node.component(Tree).register_on_stdio(self._segment).until_over()
