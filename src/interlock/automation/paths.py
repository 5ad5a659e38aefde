"""Where a node keeps what automation learns from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from interlock.core.config import Config
from interlock.core.paths import state_dir


def decisions_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """What humans decided, for rules that may be made of it."""
    return state_dir(config, environ, base_dir) / "decisions.db"
