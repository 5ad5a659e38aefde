"""State diagrams: they equal the state tables."""

from __future__ import annotations

from tools import state_diagrams


def test_page_is_current() -> None:
    message = "run: python -m tools.state_diagrams"
    assert state_diagrams.PAGE.read_text(encoding="utf-8") == state_diagrams.page(), message


def test_draws_every_state() -> None:
    drawn = state_diagrams.page()
    for name in ("introduced", "identifying", "registered", "dialling", "waiting", "leaving"):
        assert f"--> {name}" in drawn
