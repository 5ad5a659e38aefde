"""The pictures of the approval page in the docs: `python -m tests.trust.approvals_web.pictures`.

They show a real node with the demo server, in a real browser.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from interlock.core.config import ServerConfig
from interlock.core.config.trust import PolicyConfig, RuleConfig
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office
from tests.trust.approvals_web.test_page import address, enrol

IMAGES = Path(__file__).parents[3] / "docs" / "images"
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("demo.notes_delete", {"id": 2}),
    (
        "demo.notes_add",
        {
            "title": "Release 1.4",
            "text": "Deploy at 18:00.\n- Freeze the main branch.\n- Run the migration.",
        },
    ),
)
RULE = RuleConfig(
    "release-notes", "confirm", tools=["demo.notes_add"], reason="The team reads notes."
)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
        node = Office(Path(folder), servers={"demo": server}, policy=PolicyConfig(rules=[RULE]))
        browser = Browser()
        try:
            take(node, browser)
        finally:
            browser.close()
            node.stop()


def take(node: Office, browser: Browser) -> None:
    enrol(node, browser, "key", "anna")
    held = []
    for number, (name, arguments) in enumerate(CALLS):
        params = {"name": name, "arguments": arguments}
        asked = node.stateless("tools/call", params, number, name=name)
        held.append(node.once(asked).result["structuredContent"])
    note = held[-1]
    host = "document.querySelector('#host').textContent = 'localhost:8420'"
    browser.size(390, 844, phone=True)
    browser.open(address(node, note))
    browser.until("document.querySelector('#approve')?.disabled === false")
    browser.script(host)
    browser.screenshot(IMAGES / "approval-page.png")
    browser.size(1024, 560)
    browser.open(f"{node.page}/")
    browser.click("#look")
    browser.until_text("#live", "Live")
    browser.script(host)
    browser.screenshot(IMAGES / "inbox.png")


if __name__ == "__main__":
    main()
