"""The drawn states are those of the tables."""

from __future__ import annotations

from tools import state_diagrams


def test_the_page_is_not_stale() -> None:
    said = "run: python -m tools.state_diagrams"
    assert state_diagrams.PAGE.read_text(encoding="utf-8") == state_diagrams.page(), said


def test_every_state_is_drawn() -> None:
    drawn = state_diagrams.page()
    for name in ("introduced", "identifying", "registered", "dialling", "waiting", "leaving"):
        assert f"--> {name}" in drawn
