"""The features of this build, one line each, in the order in which a node creates them."""

from __future__ import annotations

import functools
import importlib
from typing import Final

from interlock.core.feature import Feature

FEATURES: Final = (
    "tree",
    "aql",
    "automation",
    "topics",
    "contracts",
    "drivers",
)


@functools.cache
def load_features() -> tuple[Feature, ...]:
    """What every feature contributes. Imports only their small `feature` modules."""
    return tuple(importlib.import_module(f"interlock.{name}.feature").FEATURE for name in FEATURES)
