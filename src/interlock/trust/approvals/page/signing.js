// Signing: the choice between the keys of this browser and a passkey, the operator's session, and
// how a browser gets a key.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { ask, make, say, waiting } from "./shown.js";

const PASSKEY = "passkey";
const CHOICE = "interlock-signs-with";
const SESSION = "interlock-session";

// Storage may be forbidden, as in some private windows: then the choice is made again next time.
function stored(storage, name) {
  try { return window[storage].getItem(name); } catch { return null; }
}

function store(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, value);
  } catch { /* See above. */ }
}

// What is used from now on, unless the person chooses something else: only what has worked.
export const choose = (kid) => store("localStorage", CHOICE, kid || PASSKEY);

// A choice of what to sign with: its field, and `use(view, decision, reason, send)`, which signs,
// sends the proof, and remembers the choice once the node has accepted it.
export async function signer() {
  const found = await keys.kept();
  const choices = found.map((one) => [one.kid, `${one.name} (key in this browser)`]);
  if (passkey.possible()) choices.push([PASSKEY, "Passkey"]);
  const last = stored("localStorage", CHOICE);
  const select = make("select", { id: "with", name: "with" },
    choices.map(([value, words]) => make("option", { value }, words)));
  if (choices.some(([value]) => value === last)) select.value = last;
  const ready = choices.length > 0;
  const used = found.length > 0 || (ready && last === PASSKEY);

  async function proof(view, decision, reason) {
    if (select.value === PASSKEY) {
      return waiting("Waiting for your passkey. Follow the browser’s instructions.",
        (signal) => passkey.decide(view, decision, reason, signal));
    }
    const one = found.find((key) => key.kid === select.value);
    return keys.signed(one, {
      aud: view.aud, jti: view.id, args_sha256: view.args_sha256, decision,
      ...(reason ? { reason } : {}), late: view.late,
    });
  }

  return {
    ready,
    field: make("div", {},
      used ? null : make("div", { class: "note", id: "no-key" },
        make("b", {}, "No key in this browser yet"),
        make("p", {}, "Run ", make("code", {}, "interlock keys enrol NAME"),
          " on the node and open the address it prints, or import a key file below.",
          ready ? " If you already have a passkey for this site, you can use it." : "")),
      ready ? [make("label", { for: "with" }, "Sign with"), select] : null),
    async use(view, decision, reason, send) {
      const chosen = select.value;
      const told = await send(await proof(view, decision, reason));
      store("localStorage", CHOICE, chosen);
      return told;
    },
  };
}

// -- the session of an operator, kept for this tab

export const session = () => stored("sessionStorage", SESSION);
export const signOut = () => store("sessionStorage", SESSION, null);
export const late = (told) => Math.round(told.now - Date.now() / 1000);

export async function signIn(signs) {
  const question = await ask("session");
  const view = { ...question, id: "inbox", args_sha256: question.nonce, late: late(question) };
  const told = await signs.use(view, "approve", "",
    (proof) => ask("session", { nonce: question.nonce, proof }));
  store("sessionStorage", SESSION, told.session);
  return told.session;
}

// Ask as an operator: with the session of this tab, or a new one where that is over.
export async function askAsOperator(signs, path, sent) {
  const known = session();
  try {
    if (known !== null) return await ask(path, sent, { "Interlock-Session": known });
  } catch (error) {
    if (error.word !== "unauthenticated") throw error;
    signOut();
  }
  return ask(path, sent, { "Interlock-Session": await signIn(signs) });
}

// -- how a browser gets a key

export function setup(done) {
  const file = make("input", { type: "file", id: "file", accept: ".pem" });
  const phrase = make("input", { type: "password", id: "phrase", autocomplete: "off" });
  const bring = async (event) => {
    event.preventDefault();
    const [chosen] = file.files;
    try {
      if (!chosen) throw new Error("Choose the key file first.");
      choose(await keys.bring(await chosen.text(), phrase.value,
        chosen.name.replace(/\.pem$/, "")));
      say("Key imported.");
      await done();
    } catch (error) {
      say(error.message, true);
    } finally {
      phrase.value = "";
    }
  };
  return make("details", { class: "setup", id: "setup" },
    make("summary", {}, "Use another key"),
    make("p", { class: "soft small" },
      "To make a new key or passkey, run ", make("code", {}, "interlock keys enrol NAME"),
      " on the node and ", make("a", { href: "enrol" }, "enter its code"),
      ". Or import a key file: it stays in this browser, and pages can sign with it but not read it."),
    make("form", { onsubmit: bring },
      make("label", { for: "file" }, "Key file ",
        make("span", { class: "soft" }, "~/.config/interlock/keys/NAME.pem")), file,
      make("label", { for: "phrase" }, "Passphrase"), phrase,
      make("button", { class: "wide", type: "submit" }, "Import key")));
}
