"""The features of this build, one line each, in the order in which a node creates them."""

from __future__ import annotations

import functools
import importlib
from typing import Final

from interlock.core.feature import Feature
from interlock.core.section_registry import register_sections
from interlock.terminal.feature_reports import register_reports

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
    """What every feature contributes, and register their sections of the config and their reports.
    Imports only their small `feature` modules."""
    features = tuple(
        importlib.import_module(f"interlock.{name}.feature").FEATURE for name in FEATURES
    )
    register_sections(section for feature in features for section in feature.sections)
    register_reports(feature.reports for feature in features if feature.reports)
    return features
