// Who signs: the choice between the keys of this browser and a passkey, and how to get one.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { make, say } from "./shown.js";

const PASSKEY = "passkey";
const LAST = "interlock-signs-with";

function remembered() {
  try { return localStorage.getItem(LAST); } catch { return null; }
}

function remember(value) {
  try { localStorage.setItem(LAST, value); } catch { /* It is asked again next time. */ }
}

// A choice of what to sign with: its field, and `proof(view, decision, reason)`.
export async function signer() {
  const found = await keys.kept();
  const choices = found.map((one) => [one.kid, `${one.name}, with the key in this browser`]);
  if (passkey.possible()) choices.push([PASSKEY, "A passkey"]);
  const select = make("select", { id: "with", name: "with" },
    choices.map(([value, words]) => make("option", { value }, words)));
  if (choices.some(([value]) => value === remembered())) select.value = remembered();
  return {
    ready: choices.length > 0,
    hasKey: found.length > 0,
    field: make("div", {}, make("label", { for: "with" }, "Sign with"), select),
    async proof(view, decision, reason) {
      remember(select.value);
      if (select.value === PASSKEY) return passkey.decide(view, decision, reason);
      const one = found.find((key) => key.kid === select.value);
      return keys.signed(one, {
        aud: view.aud, jti: view.id, args_sha256: view.args_sha256, decision,
        ...(reason ? { reason } : {}), late: view.late,
      });
    },
  };
}

// How a browser without a key gets one.
export function setup(done) {
  const file = make("input", { type: "file", id: "file", accept: ".pem" });
  const phrase = make("input", { type: "password", id: "phrase", autocomplete: "off" });
  const bring = async (event) => {
    event.preventDefault();
    const [chosen] = file.files;
    try {
      if (!chosen) throw new Error("Choose the key file first.");
      await keys.bring(await chosen.text(), phrase.value, chosen.name.replace(/\.pem$/, ""));
      say("The key is in this browser now.");
      await done();
    } catch (error) {
      say(error.message, true);
    } finally {
      phrase.value = "";
    }
  };
  return make("details", { class: "card" },
    make("summary", {}, "Sign with another key"),
    make("p", { class: "soft small" },
      "A key that is brought here stays in this browser: pages can sign with it and cannot read it. ",
      "To make a new key or a passkey instead, run ", make("code", {}, "interlock keys enrol NAME"),
      " on the node and ", make("a", { href: "enrol" }, "enter the code"), "."),
    make("form", { onsubmit: bring },
      make("label", { for: "file" }, "Key file ",
        make("span", { class: "soft" }, "~/.config/interlock/keys/NAME.pem")), file,
      make("label", { for: "phrase" }, "Its passphrase"), phrase,
      make("button", { class: "wide", type: "submit" }, "Bring the key into this browser")));
}
