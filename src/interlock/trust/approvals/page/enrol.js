// Enrolment: a code from `interlock keys enrol NAME` makes a key of this browser, or a passkey, valid.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { choose } from "./signing.js";
import { ask, drawing, make, say, show, visible, waiting } from "./shown.js";

const plain = (code) => code.toUpperCase().replace(/[^A-Z0-9]/g, "");

export async function enrol() {
  const brought = decodeURIComponent(location.hash.slice(1));
  // The code must stay neither in the address nor in the browser's history.
  if (brought) history.replaceState(null, "", location.pathname);
  const code = make("input", { id: "code", class: "code", type: "text", autocomplete: "off",
    autocapitalize: "characters", spellcheck: "false", value: brought,
    placeholder: "XXXXX-XXXXX-XXXXX-XXXXX" });
  const buttons = [
    passkey.possible() ? make("button", { class: "go wide", id: "make-passkey", type: "button",
      onclick: () => enrolled("passkey") }, "Make a passkey") : null,
    make("button", { class: "wide", id: "make-key", type: "button",
      onclick: () => enrolled("key") }, "Make a key in this browser"),
  ].filter(Boolean);

  async function enrolled(kind) {
    buttons.forEach((one) => { one.disabled = true; });
    try {
      if (!plain(code.value)) throw new Error("Enter the code first.");
      const { name } = await ask("enrol", { code: code.value });
      let sent;
      let made = null;
      if (kind === "passkey") {
        const created = await waiting("Waiting for your passkey. Follow the browser’s instructions.",
          (signal) => passkey.create(plain(code.value), name, signal));
        sent = { code: code.value, passkey: created };
      } else {
        made = await keys.fresh();
        sent = { code: code.value, key: made.jwk };
      }
      const told = await ask("enrol", sent);
      if (made !== null) await keys.keepFresh(made, name);
      choose(made?.kid);
      say("");
      finished(name, kind, told.pending);
    } catch (error) {
      say(error.message, true);
      buttons.forEach((one) => { one.disabled = false; });
    }
  }

  function finished(name, kind, pending) {
    const what = kind === "passkey" ? "this passkey" : "the key in this browser";
    if (pending) {
      show("Pending enrolment", make("section", { class: "state blue", id: "enrolled" },
        drawing("clock"), make("div", {}, make("h1", {}, "Waiting for confirmation"),
          make("p", {}, visible(`An existing operator must confirm that ${name} can approve calls with `),
            `${what}: under Pending calls, or with `,
            make("code", {}, visible(`interlock keys approve ${pending}`)), "."))),
        make("p", {}, make("a", { href: "./" }, "Pending calls")));
      return;
    }
    show("Enrolled", make("section", { class: "state green", id: "enrolled" }, drawing("yes"),
      make("div", {}, make("h1", {}, "Enrolled"),
        make("p", {}, visible(`${name} can now approve calls with `), `${what}.`,
          kind === "key" ? " The key cannot be exported." : ""))),
      make("p", {}, make("a", { href: "./" }, "Pending calls")));
  }

  show("Enrol", make("h1", {}, "Become an operator"),
    make("section", { class: "card" },
      make("p", {}, "An operator approves or rejects calls that need a person. ",
        "Get a code with ", make("code", {}, "interlock keys enrol NAME"),
        " on the node. It works once, for ten minutes."),
      make("label", { for: "code" }, "Code"), code,
      make("div", { class: "choices" }, buttons)),
    make("p", { class: "soft small" },
      "A passkey asks for your face, fingerprint or PIN each time. It can be on your phone or on a ",
      "security key. A key in this browser signs without asking, for anybody who uses this browser."));
  if (!brought) code.focus();
}
