"""Arguments on the approval page: all are visible before a person can approve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.core.config.trust import PolicyConfig, RuleConfig
from tests.support.programs import requires_browser
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office
from tests.trust.approvals_web.test_page import (
    ENTER,
    TAB,
    address,
    browser,
    chromium,
    enrol,
    passkeys,
)

pytestmark = requires_browser
__all__ = ["browser", "chromium", "passkeys"]

CODE = "def main():\n" + "".join(f"    step({number})\n" for number in range(120))
LONG: dict[str, Any] = {"path": "src/report.py", "content": CODE, "append": False}


def open_approval(office: Office, browser: Browser, **arguments: Any) -> dict[str, Any]:
    pending = office.held(**arguments)
    browser.open(address(office, pending))
    browser.find("#approve")
    return pending


def is_approve_disabled(browser: Browser) -> bool:
    return bool(browser.script("return document.querySelector('#approve').disabled"))


def test_page_names_matching_rule(tmp_path: Path, browser: Browser) -> None:
    rule = RuleConfig("friday", "confirm", tools=["shop.*"], reason="Nothing is undone on Fridays.")
    office = Office(tmp_path, policy=PolicyConfig(rules=[rule]))
    try:
        open_approval(office, browser, table="orders")
        # The words of an operator are shown as they are.
        assert browser.text("#rule").split("\n") == ["friday", "Nothing is undone on Fridays."]
    finally:
        office.stop()


def test_page_shows_short_values_first_and_text_as_text(office: Office, browser: Browser) -> None:
    open_approval(office, browser, **LONG)
    names = browser.script(
        "return [...document.querySelectorAll('#arguments :is(dt, h3)')]"
        ".map((one) => one.firstChild.data)"
    )
    assert names == ["append", "path", "content"]
    assert browser.script("return document.querySelector('#arguments pre').textContent") == CODE
    assert "121 lines" in browser.text("#arguments h3")
    scrolls = browser.script(
        "return [...document.querySelectorAll('main, main *')].filter((one) =>"
        " /auto|scroll/.test(getComputedStyle(one).overflowY)"
        " && one.tagName !== 'TEXTAREA').map((one) => one.outerHTML)"
    )
    assert scrolls == []


def test_page_shows_values_unchanged(office: Office, browser: Browser) -> None:
    deep = {"list": [1.50, {"a/b": "x\ny", "turned": "a\u202eb"}, []], "none": None}
    open_approval(
        office, browser, number=9007199254740991, text="12", empty="", blank=" x", deep=deep
    )
    output = browser.text("#arguments")
    assert "9007199254740991" in output
    # Text that reads like a number, or begins with a space, is quoted.
    for quoted in ("“12”", "“”", "“ x”"):
        assert quoted in output
    trees = browser.script(
        "return [...document.querySelectorAll('#arguments .tree')]"
        ".map((one) => one.children.length)"
    )
    assert trees == [2, 3, 2]
    assert "U+202E" in output
    assert "\u202e" not in output
    browser.click("#arguments ~ details > summary")
    assert '"number": 9007199254740991' in browser.text("#arguments ~ details pre")


def test_approve_is_disabled_until_all_arguments_were_visible(
    office: Office, browser: Browser
) -> None:
    enrol(office, browser, "key")
    open_approval(office, browser, **LONG)
    assert is_approve_disabled(browser)
    assert "more lines below" in browser.text("#hint")
    browser.script("document.querySelector('#approve').click()")
    assert browser.text("#said") == ""
    # Near the end is not the end.
    browser.script("scrollTo(0, document.querySelector('#end').offsetTop - innerHeight)")
    browser.later("await new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert is_approve_disabled(browser)
    assert office.dropped() == []
    browser.script("scrollBy(0, 400)")
    browser.until("!document.querySelector('#approve').disabled")
    assert browser.script("return document.querySelector('#hint').hidden")
    # What was seen stays seen.
    browser.script("scrollTo(0, 0)")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert office.dropped() == [LONG]


def test_rejecting_needs_no_scrolling(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    open_approval(office, browser, **LONG)
    browser.click("#refuse")
    browser.until_text("#state", "Rejected")


def test_keyboard_scrolls_to_last_argument(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    open_approval(office, browser, **LONG)
    assert is_approve_disabled(browser)
    for _ in range(20):
        browser.press(TAB)
        if browser.script("return document.activeElement.id") == "more":
            break
    for _ in range(30):
        if not is_approve_disabled(browser):
            break
        before = browser.script("return scrollY")
        browser.press(ENTER)
        browser.until(f"scrollY > {before} || !document.querySelector('#approve').disabled")
        browser.later("await new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    browser.until("!document.querySelector('#approve').disabled")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (320, 568), (1280, 800)])
def test_button_bar_covers_no_argument(
    office: Office, browser: Browser, width: int, height: int
) -> None:
    browser.size(width, height, phone=width < 500)
    open_approval(office, browser, **LONG)
    browser.script("scrollTo(0, document.documentElement.scrollHeight)")
    last, bar, ground = browser.script(
        "const box = (one) => document.querySelector(one).getBoundingClientRect();"
        "return [box('main > :last-child').bottom, box('#bar').top,"
        " getComputedStyle(document.querySelector('#bar')).backgroundColor]"
    )
    assert last <= bar
    assert ground == "rgb(255, 255, 255)"


def test_page_shows_result_as_text(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    office.shop.results["drop_table"] = {
        "content": [
            {"type": "text", "text": "Dropped:\n  <b>orders</b>"},
            {"type": "resource_link", "uri": "file:///log.txt", "name": "log"},
        ],
        "structuredContent": {"rows": 3},
    }
    open_approval(office, browser, table="orders")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    text = browser.script("return document.querySelector('#result pre').innerText")
    assert text == "Dropped:\n  <b>orders</b>"
    assert "file:///log.txt" in browser.text("#result")
    assert "structuredContent" not in browser.text("#result")
    browser.click("#result summary")
    assert '"structuredContent"' in browser.text("#result details pre")


SECRET = {"table": "orders", "pin": "hunter2hunter2"}


def test_approving_requires_acknowledging_hidden_value(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    open_approval(office, browser, **SECRET)
    assert "hidden (secret)" in browser.text("#arguments")
    assert "hunter2" not in browser.script("return document.documentElement.outerHTML")
    browser.script("document.querySelector('#end').scrollIntoView({ block: 'center' })")
    browser.until_text("#hint", "Reveal the hidden values")
    assert is_approve_disabled(browser)
    browser.click("#accept")
    browser.until("!document.querySelector('#approve').disabled")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert office.dropped() == [SECRET]
    assert browser.complaints() == []


def test_hidden_value_can_be_revealed(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    open_approval(office, browser, **SECRET)
    browser.type("#reason", "as agreed")
    browser.click("#reveal")
    browser.until_text("#arguments", "hunter2hunter2")
    assert browser.script("return document.querySelector('#accept')") is None
    assert browser.script("return document.querySelector('#reason').value") == "as agreed"
    browser.until("!document.querySelector('#approve').disabled")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert office.dropped() == [SECRET]
    assert "hunter2" not in browser.script("return document.documentElement.outerHTML")


def test_imitated_mask_hides_nothing(office: Office, browser: Browser) -> None:
    open_approval(office, browser, table="*** (hidden: a secret of 12 characters)")
    assert browser.script("return document.querySelector('.hid')") is None
    assert "*** (hidden: a secret" in browser.text("#arguments")
