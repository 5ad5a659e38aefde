"""Mapping of contract inputs to driver inputs."""

from __future__ import annotations

import pytest

from interlock.manifests.binding import MappingTarget, mapping_renames
from interlock.manifests.model import ArgumentMapping
from tests.manifests.texts import driver, entry


@pytest.mark.spec("DR-30.implements-7")
def test_renames_inputs_by_mapping() -> None:
    """The pattern of AIP-30's first example: the contract has aspect, the driver aspect_ratio."""
    mapping = {
        "prompt": "prompt",
        "style": "artistic_style",
        "aspect": {"from": "aspect_ratio", "transform": "aspect_to_size"},
        "dimensions": {"from": "size"},
    }
    read = driver(implements=[entry(mapping=mapping)]).implements[0].mapping
    assert read["aspect"] == ArgumentMapping("aspect_ratio", "aspect_to_size")
    assert mapping_renames(read, ("prompt", "aspect", "style", "size")) == {
        "prompt": (MappingTarget("prompt"),),
        "style": (MappingTarget("artistic_style"),),
        "aspect": (MappingTarget("aspect_ratio", "aspect_to_size"),),
        "size": (MappingTarget("dimensions"),),
    }
