// Enrolling: a code from `interlock keys enrol NAME` makes this browser, or a passkey, count.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { ask, drawing, make, say, show, visible } from "./shown.js";

const plain = (code) => code.toUpperCase().replace(/[^A-Z0-9]/g, "");

export async function enrol() {
  const brought = decodeURIComponent(location.hash.slice(1));
  // The code must not stay in the address, nor in what the browser remembers.
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
        sent = { code: code.value, passkey: await passkey.create(plain(code.value), name) };
      } else {
        made = await keys.fresh();
        sent = { code: code.value, key: made.jwk };
      }
      await ask("enrol", sent);
      if (made !== null) await keys.keepFresh(made, name);
      say("");
      show("Enrolled", make("section", { class: "card done green", id: "enrolled" }, drawing("yes"),
        make("h1", {}, "Enrolled"),
        make("p", {}, visible(`${name} can now confirm calls `), kind === "passkey"
          ? "with this passkey." : "with the key in this browser. It cannot be taken out of it."),
        make("p", { class: "soft" }, "Open the address of a call that waits to decide about it.")));
    } catch (error) {
      say(error.message, true);
      buttons.forEach((one) => { one.disabled = false; });
    }
  }

  show("Enrol", make("h1", {}, "Enrol to confirm calls"),
    make("section", { class: "card" },
      make("p", {}, "Whoever enrols here can let calls through that wait for a person. ",
        "The code comes from ", make("code", {}, "interlock keys enrol NAME"),
        " on the node, works once, and only for ten minutes."),
      make("label", { for: "code" }, "Code"), code,
      make("div", { class: "choices" }, buttons)),
    make("p", { class: "soft small" },
      "A passkey asks for your face, finger or PIN each time and may be on your phone or a ",
      "security key. A key in this browser signs without asking, for whoever uses this browser."));
  if (!brought) code.focus();
}
