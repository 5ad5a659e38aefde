"""The page of the language documents what the draft wants documented."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "aql-language.md"


@pytest.mark.parametrize(
    "sentence",
    [
        pytest.param(
            "A date alone is passed on unchanged: the server decides its meaning.",
            marks=pytest.mark.spec("AQ-4.7.2-1"),
        ),
        pytest.param(
            "In `input` of an update of a note it removes the field; an omitted field stays "
            "unchanged.",
            marks=pytest.mark.spec("AQ-4.7.6-1"),
        ),
    ],
)
def test_page_documents_values(sentence: str) -> None:
    assert sentence in " ".join(PAGE.read_text(encoding="utf-8").split())
