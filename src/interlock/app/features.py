"""The features of this build, one line each, in the order in which a node creates them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from interlock.core.feature import Feature, FeatureComponent, load_object, register_sections
from interlock.terminal.feature_reports import register_reports

if TYPE_CHECKING:
    from interlock.trust.node_context import NodeContext

FEATURES: Final = (
    "contracts",
    "drivers",
    "tree",
    "aql",
    "automation",
    "topics",
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


def create_components(context: NodeContext) -> Iterator[tuple[str, FeatureComponent]]:
    """Create the component of each feature, one after the other, with its name."""
    for feature in load_features():
        if feature.component:
            yield feature.name, load_object(feature.component)(context)
