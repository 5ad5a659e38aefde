"""The features of this build, in the order in which a node creates them."""

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
    """Import the `feature` module of every feature, and register their config sections and reports.

    The other modules of a feature are not imported.
    """
    features = tuple(
        importlib.import_module(f"interlock.{name}.feature").FEATURE for name in FEATURES
    )
    register_sections(section for feature in features for section in feature.sections)
    register_reports(feature.reports for feature in features if feature.reports)
    return features


def create_components(context: NodeContext) -> Iterator[tuple[str, FeatureComponent]]:
    """Create the components of all features in order. Yields their names and components."""
    for feature in load_features():
        if feature.component:
            yield feature.name, load_object(feature.component)(context)
