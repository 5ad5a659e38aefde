"""The approval page in a real browser: it shows the call, and people sign their decision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.core.config.trust import ApprovalsConfig
from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation
from tests.support.programs import requires_browser
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office

pytestmark = requires_browser

TAB, ENTER = "\ue004", "\ue007"
CONTRAST = """
    const light = (colour) => {
      const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((one) => {
        const part = one / 255;
        return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
      for (let one = node; one; one = one.parentElement) {
        const colour = getComputedStyle(one).backgroundColor;
        if (!/, 0\\)$/.test(colour)) return colour;
      }
      return "rgb(255, 255, 255)";
    };
    const bad = [];
    for (const node of document.querySelectorAll("main *, header *")) {
      const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
      if (!own || !node.checkVisibility() || node.disabled) continue;
      const [a, b] = [getComputedStyle(node).color, behind(node)].map(light);
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) bad.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)}`);
    }
    return bad;
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    one = Browser()
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.size(390, 844, phone=True)
    chromium.complaints()
    yield chromium
    chromium.open("about:blank")


@pytest.fixture
def passkeys(browser: Browser) -> Iterator[str]:
    authenticator = browser.authenticator()
    yield authenticator
    browser.do_delete(f"/webauthn/authenticator/{authenticator}")


def enrol(office: Office, browser: Browser, kind: str, name: str = "bea") -> None:
    """Follow the address that `interlock keys enrol` prints."""
    code = office.approving.operators.store.invite(Invitation(name))
    browser.open(f"{office.page}/enrol#{code}")
    browser.click(f"#make-{kind}")
    browser.until_text("#enrolled", "interlock keys approve")
    office.admit(browser.text("#enrolled code").split()[-1])
    # The code is not left in the address, nor does it work again.
    assert browser.url == f"{office.page}/enrol"
    assert office.approving.operators.store.find_invitation(code) is None


def address(office: Office, told: dict[str, Any]) -> str:
    return f"{office.page}/{told['confirmation_id']}"


@pytest.mark.spec("AX-11.3-5", "AQ-8.8.2-5")
@pytest.mark.feature("aql")
def test_passkey_approves_call(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    pending = office.held(table="orders", rows=9007199254740991)
    # The caller is given the very address that the person opens.
    assert pending["url"] == address(office, pending)
    browser.open(pending["url"])
    assert browser.text("#tool") == "shop.drop_table"
    assert browser.text("#effect") == "Cannot be undone"
    assert browser.text("#arguments").split("\n") == [
        *("rows", "9007199254740991", "table", "orders")
    ]
    assert "local" in browser.text("#request")
    assert "danger:verify" in browser.text("#rule")
    # It is said once, though the rule's reason says it as well.
    assert browser.text("main").lower().count("undone") == 1
    assert browser.text("#left").endswith("left")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert "by bea" in browser.text("#state")
    assert browser.text("#result pre") == "drop_table"
    # The state is no warning any more.
    assert browser.script("return document.querySelector('#state').className") == "state green"
    assert office.dropped() == [{"table": "orders", "rows": 9007199254740991}]
    # It was used once, for this one: the authenticator counts.
    (credential,) = browser.credentials(passkeys)
    assert credential["rpId"] == "localhost"
    assert browser.complaints() == []


def test_page_shows_context(office: Office, browser: Browser) -> None:
    pending = office.held(table="orders")
    browser.open(address(office, pending))
    browser.until_text("#arguments", "orders")
    assert browser.script("return document.querySelector('#beside')") is None
    entry = office.approving.approvals._inbox.entries.get(pending["confirmation_id"])
    assert entry is not None
    # As of a call of a contract, which this node has none of.
    shown = b'{"dev.interlock/context":{"tenant":"blue","api_key":"*** (hidden)"}}'
    entry.record = msgspec.structs.replace(entry.record, meta_shown=shown)
    browser.open(address(office, pending))
    browser.until_text("#beside", "tenant")
    assert "blue" in browser.text("#beside")
    assert "*** (hidden)" in browser.text("#beside")
    assert browser.complaints() == []


def test_client_opens_page_for_its_user(office: Office, browser: Browser, passkeys: str) -> None:
    """The official client asks its user to open an address; the user does, and its call is made."""
    import mcp_types as types
    from mcp import Client

    enrol(office, browser, "passkey")

    def at_the_page(url: str) -> None:
        browser.open(url)
        browser.click("#approve")
        browser.until_text("#state", "Approved and done")

    async def run() -> None:
        async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            assert isinstance(params, types.ElicitRequestURLParams)
            await asyncio.to_thread(at_the_page, params.url)
            return types.ElicitResult(action="accept")

        async with Client(office.url, elicitation_callback=elicit) as client:
            result = await client.call_tool("shop.drop_table", {"table": "orders"})
            assert not result.is_error
            assert result.content[0].text == "drop_table"  # type: ignore[union-attr]

    asyncio.run(run())
    assert office.dropped() == [{"table": "orders"}]


def test_passkey_requires_user_presence(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    pending = office.held()
    browser.owner_is_there(passkeys, False)
    browser.open(address(office, pending))
    browser.click("#approve")
    browser.until_text("#said", "No passkey was used.")
    assert office.approving.approvals.find(pending["confirmation_id"]).state == "pending"  # type: ignore[union-attr]
    assert office.dropped() == []
    # Once the verify its owner, the same page works.
    browser.owner_is_there(passkeys, True)
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")


@pytest.mark.spec("AX-11.3-5")
def test_browser_key_is_not_extractable(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key", "cleo")
    pending = office.held()
    browser.open(address(office, pending))
    browser.until_text("#with", "cleo (key in this browser)")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert "by cleo" in browser.text("#state")
    assert len(office.dropped()) == 1
    taken = browser.later(
        """
        const file = await new Promise((done) => {
          const request = indexedDB.open("interlock", 1);
          request.onsuccess = () => done(request.result);
        });
        const [one] = await new Promise((done) => {
          const request = file.transaction("keys").objectStore("keys").getAll();
          request.onsuccess = () => done(request.result);
        });
        file.close();
        const tried = await crypto.subtle.exportKey("pkcs8", one.key).catch((e) => e.name);
        return [one.key.extractable, one.name, tried];
        """
    )
    assert taken == [False, "cleo", "InvalidAccessError"]
    assert browser.complaints() == []


@pytest.mark.parametrize("passphrase", [b"open sesame", None])
def test_page_imports_operator_key_file(
    office: Office,
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passphrase: bytes | None,
) -> None:
    from interlock.terminal import operator_key

    monkeypatch.setattr(operator_key, "keys_dir", lambda: tmp_path / "keys")
    private, _, pem = operator_key.create_key("dora", passphrase)
    office.approving.operators.store.add(enrol_key(pem, Invitation("dora")), office.sign)
    pending = office.held()
    browser.open(address(office, pending))
    browser.click("#setup > summary")
    browser.type("#file", str(private))
    if passphrase is not None:
        browser.type("#phrase", "wrong")
        browser.click("form button")
        browser.until_text("#said", "Wrong passphrase")
        browser.type("#phrase", passphrase.decode())
    browser.click("form button")
    browser.until_text("#with", "dora (key in this browser)")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert "by dora" in browser.text("#state")


def test_rejection_and_reason_reach_caller(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    pending = office.held()
    browser.open(address(office, pending))
    browser.type("#reason", "Not on a Friday ☃")
    browser.click("#refuse")
    browser.until_text("#state", "Rejected")
    assert "Not on a Friday ☃" in browser.text("#state")
    handle = {"x-mcpax-approval": pending["confirmation_id"]}
    answer = office.once(office.call("drop_table", {"table": "orders"}, more_meta=handle))
    assert "Not on a Friday ☃" in answer.json["error"]["message"]
    assert office.dropped() == []
    # Whoever opens the address later sees the same, and no way to decide.
    browser.open(address(office, pending))
    browser.until_text("#state", "Rejected")
    assert browser.script("return document.querySelector('#approve')") is None


def test_page_shows_decision_of_other_operator(office: Office, browser: Browser) -> None:
    pending = office.held()
    browser.open(address(office, pending))
    browser.find("#approve")
    office.decide(pending, office.proof(pending))
    browser.until_text("#state", "Approved and done")
    assert "by chief" in browser.text("#state")


def test_page_shows_expiry(tmp_path: Path, browser: Browser) -> None:
    office = Office(tmp_path, approvals=ApprovalsConfig(expiry=2.0))
    try:
        pending = office.held()
        browser.open(address(office, pending))
        browser.until_text("#state", "Expired")
        assert office.decide(pending, office.proof(pending)).status == 410
    finally:
        office.stop()


def test_operator_lists_pending_calls(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    office.held(table="one")
    browser.open(office.page)
    assert browser.url == f"{office.page}/"
    browser.click("#look")
    browser.until_text("#count", "1 pending call")
    browser.click("a.item")
    browser.until_text("#arguments", "one")


def test_unenrolled_visitor_cannot_decide(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    office.remove("bea")
    pending = office.held()
    browser.open(address(office, pending))
    browser.click("#approve")
    browser.until_text("#said", "not enrolled")
    browser.open(f"{office.page}/enrol")
    browser.type("#code", "AAAAA-AAAAA-AAAAA-AAAAA")
    browser.click("#make-key")
    browser.until_text("#said", "Invalid or expired code")
    browser.open(f"{office.page}/unknown")
    browser.until_text("#problem", "No such call")
    assert office.dropped() == []


def test_page_shows_server_text_without_running_it(office: Office, browser: Browser) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    pending = office.held(table=evil, turned="a\u202eb", deep={"html": evil})
    browser.open(address(office, pending))
    output = browser.text("#arguments")
    assert output.count(evil) == 2
    assert "U+202E" in output
    assert "\u202e" not in output
    assert browser.title == "Approve shop.drop_table? · Interlock"
    assert browser.script("return document.querySelectorAll('main img, main script').length") == 0
    # Everything comes from the node, and nothing else is asked for.
    loaded = browser.script("return performance.getEntriesByType('resource').map((r) => r.name)")
    assert loaded
    assert all(item.startswith(f"{office.page}/") for item in loaded)
    assert browser.complaints() == []
    with_script = browser.script(
        "const s = document.createElement('script');"
        "try { s.textContent = 'window.ran = 1'; document.head.append(s); } catch {}"
        "return window.ran ?? null"
    )
    assert with_script is None


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height", "phone"), [(390, 844, True), (320, 568, True),
                                                        (1280, 900, False)])  # fmt: skip
def test_page_is_accessible_on_every_screen(
    office: Office, browser: Browser, width: int, height: int, phone: bool, dark: bool
) -> None:
    browser.size(width, height, phone=phone, dark=dark)
    pending = office.held(table="orders" * 60, api_key="sk-verysecretverysecret")
    for url in (address(office, pending), f"{office.page}/enrol", f"{office.page}/"):
        browser.open(url)
        browser.find("main button")
        assert browser.script("return document.documentElement.scrollWidth") <= width
        assert browser.script(CONTRAST) == []
        small = browser.script(
            "return [...document.querySelectorAll('button, select, input, textarea, summary')]"
            ".filter((one) => one.checkVisibility())"
            ".filter((one) => one.getBoundingClientRect().height < 44).map((one) => one.outerHTML)"
        )
        assert small == []
        unnamed = browser.script(
            "return [...document.querySelectorAll('input, select, textarea')]"
            ".filter((one) => one.labels.length === 0).map((one) => one.outerHTML)"
        )
        assert unnamed == []
    assert browser.script("return document.documentElement.lang") == "en"


def test_page_works_with_keyboard(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key", "fay")
    pending = office.held()
    browser.open(address(office, pending))
    browser.find("#approve")
    for _ in range(20):
        browser.press(TAB)
        if browser.script("return document.activeElement.id") == "approve":
            break
    browser.press(ENTER)
    browser.until_text("#state", "Approved and done")
    # Whoever does not see it hears it: the focus is on what came of it.
    assert browser.script("return document.activeElement.id") == "main"
