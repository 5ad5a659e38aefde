"""A server that is shown as itself judges for itself, but what the config keeps back stays back."""

from __future__ import annotations

import pytest

from interlock.errors import UNKNOWN_TOOL
from tests.catalog.offers import offer
from tests.pipeline.calls import tool_call
from tests.pipeline.rig import Rig


def transparent(**settings: object) -> Rig:
    node = Rig(offer("s", ["open"], expose="transparent", **settings))
    node.pipeline.transparent = "s"
    return node


def test_a_tool_that_is_not_listed_is_for_the_server_to_judge() -> None:
    node = transparent()
    node.begin(tool_call("unlisted"))
    [sent] = node.upstreams["s"].started
    assert sent.call.extra is not None
    assert bytes(sent.call.extra["name"]) == b'"unlisted"'


@pytest.mark.parametrize(
    "settings", [{"deny": ["*"]}, {"deny": ["un*"]}, {"allow": ["open"]}], ids=str
)
def test_what_the_config_keeps_back_stays_back(settings: dict[str, list[str]]) -> None:
    node = transparent(**settings)
    assert node.refused(tool_call("unlisted")).failure is UNKNOWN_TOOL
    assert node.upstreams["s"].started == []
