// Signing: the choice between the keys of this browser and a passkey, the session of an operator, and
// the import of keys.

import * as keys from "./keys.js";
import * as passkey from "./passkey.js";
import { make, request, showMessage, showProgress } from "./elements.js";

const PASSKEY = "passkey";
const CHOICE = "interlock-signs-with";
const SESSION = "interlock-session";

// Storage may be forbidden, for example in private windows. Then the choice is not remembered.
function readStorage(storage, name) {
  try { return window[storage].getItem(name); } catch { return null; }
}

function writeStorage(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, value);
  } catch { /* See above. */ }
}

// Remembers the key or the passkey for the next time, after it was used successfully.
export const rememberChoice = (kid) => writeStorage("localStorage", CHOICE, kid || PASSKEY);

// Creates the choice of a key or passkey: its form field, and `use(view, decision, reason, send)`,
// which signs, sends the proof, and remembers the choice once the node has accepted the proof.
export async function createSigner() {
  const storedKeys = await keys.load();
  const choices = storedKeys.map((key) => [key.kid, `${key.name} (key in this browser)`]);
  if (passkey.isSupported()) choices.push([PASSKEY, "Passkey"]);
  const lastChoice = readStorage("localStorage", CHOICE);
  const select = make("select", { id: "with", name: "with" },
    choices.map(([value, text]) => make("option", { value }, text)));
  if (choices.some(([value]) => value === lastChoice)) select.value = lastChoice;
  const ready = choices.length > 0;
  const hasKey = storedKeys.length > 0 || (ready && lastChoice === PASSKEY);

  async function createProof(view, decision, reason) {
    if (select.value === PASSKEY) {
      return showProgress("Waiting for your passkey. Follow the browser’s instructions.",
        (signal) => passkey.signDecision(view, decision, reason, signal));
    }
    const key = storedKeys.find(({ kid }) => kid === select.value);
    return keys.signProof(key, {
      aud: view.aud, jti: view.id, args_sha256: view.args_sha256, decision,
      ...(reason ? { reason } : {}),
    }, view.clockOffset);
  }

  return {
    ready,
    field: make("div", {},
      hasKey ? null : make("div", { class: "note", id: "no-key" },
        make("b", {}, "No key in this browser yet"),
        make("p", {}, "Run ", make("code", {}, "interlock keys enrol NAME"),
          " on the node and open the address it prints, or import a key file below.",
          ready ? " If you already have a passkey for this site, you can use it." : "")),
      ready ? [make("label", { for: "with" }, "Sign with"), select] : null),
    async use(view, decision, reason, send) {
      const choice = select.value;
      const response = await send(await createProof(view, decision, reason));
      writeStorage("localStorage", CHOICE, choice);
      return response;
    },
  };
}

// -- the session of an operator, stored for this tab

export const currentSession = () => readStorage("sessionStorage", SESSION);
export const signOut = () => writeStorage("sessionStorage", SESSION, null);
// Returns the seconds by which the clock of this browser is behind the clock of the node.
export const clockOffset = (response) => Math.round(response.now - Date.now() / 1000);

export async function signIn(signer) {
  const challenge = await request("session");
  const view = { ...challenge, id: "inbox", args_sha256: challenge.nonce,
    clockOffset: clockOffset(challenge) };
  const response = await signer.use(view, "approve", "",
    (proof) => request("session", { nonce: challenge.nonce, proof }));
  writeStorage("sessionStorage", SESSION, response.session);
  return response.session;
}

// Sends a request with the session of this tab. If the session has ended, signs in again.
export async function requestAsOperator(signer, path, body) {
  const session = currentSession();
  try {
    if (session !== null) return await request(path, body, { "Interlock-Session": session });
  } catch (error) {
    if (error.code !== "unauthenticated") throw error;
    signOut();
  }
  return request(path, body, { "Interlock-Session": await signIn(signer) });
}

// -- the import of keys

export function createKeyForm(onImported) {
  const file = make("input", { type: "file", id: "file", accept: ".pem" });
  const passphrase = make("input", { type: "password", id: "phrase", autocomplete: "off" });
  const importKey = async (event) => {
    event.preventDefault();
    const [keyFile] = file.files;
    try {
      if (!keyFile) throw new Error("Choose the key file first.");
      rememberChoice(await keys.importPem(await keyFile.text(), passphrase.value,
        keyFile.name.replace(/\.pem$/, "")));
      showMessage("Key imported.");
      await onImported();
    } catch (error) {
      showMessage(error.message, true);
    } finally {
      passphrase.value = "";
    }
  };
  return make("details", { class: "setup", id: "setup" },
    make("summary", {}, "Use another key"),
    make("p", { class: "soft small" },
      "To make a new key or passkey, run ", make("code", {}, "interlock keys enrol NAME"),
      " on the node and ", make("a", { href: "enrol" }, "enter its code"),
      ". Or import a key file. It stays in this browser. Pages can sign with it but cannot read it."),
    make("form", { onsubmit: importKey },
      make("label", { for: "file" }, "Key file ",
        make("span", { class: "soft" }, "~/.config/interlock/keys/NAME.pem")), file,
      make("label", { for: "phrase" }, "Passphrase"), passphrase,
      make("button", { class: "wide", type: "submit" }, "Import key")));
}
