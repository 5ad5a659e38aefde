// Enrolment: a code of `interlock keys enrol NAME` registers a key of this browser, or a passkey.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { rememberChoice } from "./signing.js";
import { createIcon, escapeText, make, request, showMessage, showPage, showProgress }
  from "./elements.js";

const normalizeCode = (code) => code.toUpperCase().replace(/[^A-Z0-9]/g, "");

export async function showEnrolment() {
  const addressCode = decodeURIComponent(location.hash.slice(1));
  // The code must not remain in the address or in the history of the browser.
  if (addressCode) history.replaceState(null, "", location.pathname);
  const code = make("input", { id: "code", class: "code", type: "text", autocomplete: "off",
    autocapitalize: "characters", spellcheck: "false", value: addressCode,
    placeholder: "XXXXX-XXXXX-XXXXX-XXXXX" });
  const buttons = [
    passkey.isSupported() ? make("button", { class: "go wide", id: "make-passkey", type: "button",
      onclick: () => enrol("passkey") }, "Make a passkey") : null,
    make("button", { class: "wide", id: "make-key", type: "button",
      onclick: () => enrol("key") }, "Make a key in this browser"),
  ].filter(Boolean);

  async function enrol(kind) {
    buttons.forEach((button) => { button.disabled = true; });
    try {
      if (!normalizeCode(code.value)) throw new Error("Enter the code first.");
      const { name } = await request("enrol", { code: code.value });
      let body;
      let key = null;
      if (kind === "passkey") {
        const created = await showProgress(
          "Waiting for your passkey. Follow the browser’s instructions.",
          (signal) => passkey.create(normalizeCode(code.value), name, signal));
        body = { code: code.value, passkey: created };
      } else {
        key = await keys.generate();
        body = { code: code.value, key: key.jwk };
      }
      const response = await request("enrol", body);
      if (key !== null) await keys.saveGenerated(key, name);
      rememberChoice(key?.kid);
      showMessage("");
      showResult(name, kind, response.pending);
    } catch (error) {
      showMessage(error.message, true);
      buttons.forEach((button) => { button.disabled = false; });
    }
  }

  function showResult(name, kind, pending) {
    const label = kind === "passkey" ? "this passkey" : "the key in this browser";
    if (pending) {
      showPage("Pending enrolment", make("section", { class: "state blue", id: "enrolled" },
        createIcon("clock"), make("div", {}, make("h1", {}, "Waiting for confirmation"),
          make("p", {}, escapeText("An existing operator must confirm that "
            + `${name} can approve calls with `), `${label}: under Pending calls, or with `,
            make("code", {}, escapeText(`interlock keys approve ${pending}`)), "."))),
        make("p", {}, make("a", { href: "./" }, "Pending calls")));
      return;
    }
    showPage("Enrolled", make("section", { class: "state green", id: "enrolled" },
      createIcon("yes"),
      make("div", {}, make("h1", {}, "Enrolled"),
        make("p", {}, escapeText(`${name} can now approve calls with `), `${label}.`,
          kind === "key" ? " The key cannot be exported." : ""))),
      make("p", {}, make("a", { href: "./" }, "Pending calls")));
  }

  showPage("Enrol", make("h1", {}, "Become an operator"),
    make("section", { class: "card" },
      make("p", {}, "An operator approves or rejects calls that need a person. ",
        "Get a code with ", make("code", {}, "interlock keys enrol NAME"),
        " on the node. It works once, for ten minutes."),
      make("label", { for: "code" }, "Code"), code,
      make("div", { class: "choices" }, buttons)),
    make("p", { class: "soft small" },
      "A passkey asks for your face, fingerprint or PIN each time. It can be on your phone or on a ",
      "security key. A key in this browser signs without asking, for every user of this browser."));
  if (!addressCode) code.focus();
}
