"""A real browser, driven by the W3C WebDriver protocol: Chromium through its chromedriver."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.programs import CHROMEDRIVER, CHROMIUM
from tests.support.timeouts import HANG_TIMEOUT

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en-GB",
)  # fmt: skip


class BrowserError(AssertionError):
    """The browser could not do what it was told."""


class Browser:
    """One browser with a profile of its own, gone when it is closed."""

    def __init__(self) -> None:
        assert CHROMEDRIVER is not None
        self._profile = tempfile.mkdtemp(prefix="interlock-browser-")
        self._driver = subprocess.Popen(
            [CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._base = self._session = ""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        assert self._driver.stdout is not None
        port = ""
        for line in self._driver.stdout:
            matches = re.search(r"started successfully on port (\d+)", line)
            if matches:
                port = matches[1]
                break
        self._base = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": [*_FLAGS, f"--user-data-dir={self._profile}"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._command("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"
        self.do("POST", "/timeouts", {"implicit": int(HANG_TIMEOUT * 1000), "script": 20_000})

    def close(self) -> None:
        try:
            if self._session:
                self._command("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(HANG_TIMEOUT)
            assert self._driver.stdout is not None
            self._driver.stdout.close()
            shutil.rmtree(self._profile, ignore_errors=True)

    def _command(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise BrowserError(f"{value['error']}: {value['message'][:500]}") from None

    def do(self, method: str, path: str, body: Any = None) -> Any:
        return self._command(method, self._session + path, {} if body is None else body)

    def do_delete(self, path: str) -> None:
        self._command("DELETE", self._session + path)

    def cdp(self, command: str, **params: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.do("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    # -- looking

    def open(self, url: str) -> None:
        self.do("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._command("GET", self._session + "/url"))

    @property
    def title(self) -> str:
        return str(self._command("GET", self._session + "/title"))

    def find(self, selector: str) -> str:
        """The element, as soon as it is there."""
        result = self.do("POST", "/element", {"using": "css selector", "value": selector})
        return str(result[_ELEMENT])

    def text(self, selector: str) -> str:
        return str(self._command("GET", f"{self._session}/element/{self.find(selector)}/text"))

    def script(self, body: str, *arguments: Any) -> Any:
        return self.do("POST", "/execute/sync", {"script": body, "args": list(arguments)})

    def later(self, body: str) -> Any:
        """The value that a promise comes to."""
        script = f"const done = arguments[0]; (async () => {{ {body} }})().then(done, done);"
        return self.do("POST", "/execute/async", {"script": script, "args": []})

    def until(self, condition: str) -> None:
        """Wait, in the page, until an expression is true. It is looked at once a frame."""
        script = """
            const done = arguments[0];
            const ends = performance.now() + 15000;
            const look = () => {
              if (%s) done(true);
              else if (performance.now() > ends) done(document.body.innerText);
              else requestAnimationFrame(look);
            };
            look();
        """
        result = self.do("POST", "/execute/async", {"script": script % condition, "args": []})
        assert result is True, f"{condition} never was true: {result!r}"

    def until_text(self, selector: str, wanted: str) -> None:
        """Wait, in the page, until an element says this."""
        script = """
            const [selector, wanted, done] = arguments;
            const said = () => (document.querySelector(selector)?.textContent ?? "");
            const look = () => said().includes(wanted);
            if (look()) { done(true); return; }
            const watch = new MutationObserver(() => {
              if (look()) { watch.disconnect(); done(true); }
            });
            watch.observe(document, { childList: true, subtree: true, characterData: true });
            setTimeout(() => done(said() || document.body.innerText), 15000);
        """
        result = self.do("POST", "/execute/async", {"script": script, "args": [selector, wanted]})
        assert result is True, f"{selector} never said {wanted!r}, but {result!r}"

    # -- doing

    def click(self, selector: str) -> None:
        element = self.find(selector)
        # As a person would: what the page keeps at its lower edge is not in the way then.
        self.script("arguments[0].scrollIntoView({ block: 'center' })", {_ELEMENT: element})
        self.do("POST", f"/element/{element}/click")

    def type(self, selector: str, text: str) -> None:
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys, pressed one after the other on whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    def complaints(self) -> list[str]:
        """What the page's console and its content policy had to say."""
        entries = self.do("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    # -- how it looks

    def size(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    # -- passkeys

    def authenticator(self, *, verified: bool = True, touched: bool = True) -> str:
        """A security key; `verified`: it knows its owner, `touched`: who confirms at once."""
        result = self.do(
            "POST",
            "/webauthn/authenticator",
            {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": verified,
                "isUserConsenting": touched,
            },
        )
        return str(result)

    def credentials(self, authenticator: str) -> list[dict[str, Any]]:
        path = f"{self._session}/webauthn/authenticator/{authenticator}/credentials"
        result: list[dict[str, Any]] = self._command("GET", path)
        return result

    def owner_is_there(self, authenticator: str, there: bool) -> None:
        path = f"/webauthn/authenticator/{authenticator}/uv"
        self.do("POST", path, {"isUserVerified": there})
