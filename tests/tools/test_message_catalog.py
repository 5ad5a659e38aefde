"""Catalogs of messages: they equal the messages of the source."""

from __future__ import annotations

from tools.message_catalog import CATALOG, Message, catalog, find_messages

SOURCE = """
def send(self) -> None:
    if self.is_closed:
        raise InterlockError(UPSTREAM_LOST, f"Upstream {self.key}: the connection was lost.")
    _log.warning("upstream %s: no response", self.key)
    raise ValueError("too " + "long " + name)
    raise KeyError(name)
    output.print_note("one line" if short else "two lines")
    unrelated("not a message")
"""


def test_finds_errors_log_lines_and_notes() -> None:
    assert list(find_messages(SOURCE)) == [
        Message("upstream_lost", "Upstream {self.key}: the connection was lost."),
        Message("log warning", "upstream %s: no response"),
        Message("ValueError", "too long "),
        Message("terminal print_note", "one line | two lines"),
    ]


def test_catalogs_are_current() -> None:
    """After a change: `python -m tools.message_catalog`, and review the difference."""
    written = {path.stem: path.read_text(encoding="utf-8") for path in CATALOG.glob("*.txt")}
    assert written == catalog()
