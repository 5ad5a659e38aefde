// Passkeys: the browser or a security key signs, after it verified its owner.

import { base64url, sha256 } from "./keys.js";

const PREFIX = "passkey:";
const ALGORITHMS = [-8, -7, -257];

export function possible() {
  return window.PublicKeyCredential !== undefined && navigator.credentials !== undefined;
}

function plainly(error) {
  if (error.name === "AbortError") return new Error("Cancelled.");
  if (error.name === "NotAllowedError") return new Error("No passkey was used. Try again.");
  if (error.name === "InvalidStateError") return new Error("This device already has a passkey here.");
  if (error.name === "SecurityError") {
    return new Error("Passkeys need a host name: open this page as https://… or http://localhost.");
  }
  return error;
}

export async function decide(view, decision, reason, signal) {
  const words = ["interlock-approval-1", view.aud, view.id, view.args_sha256, decision, reason];
  const challenge = await sha256(words.join("\n"));
  const answer = await navigator.credentials.get({
    publicKey: { challenge, userVerification: "required", timeout: 120000 }, signal,
  }).catch((error) => { throw plainly(error); });
  const { clientDataJSON, authenticatorData, signature } = answer.response;
  const proof = {
    id: base64url(answer.rawId), client_data: base64url(clientDataJSON),
    authenticator_data: base64url(authenticatorData), signature: base64url(signature),
    decision, reason,
  };
  return PREFIX + base64url(new TextEncoder().encode(JSON.stringify(proof)));
}

export async function create(code, name, signal) {
  const id = crypto.getRandomValues(new Uint8Array(16));
  const made = await navigator.credentials.create({
    publicKey: {
      challenge: await sha256(`interlock-enrolment-1\n${code}`),
      rp: { name: "Interlock approvals" },
      user: { id, name, displayName: name },
      pubKeyCredParams: ALGORITHMS.map((alg) => ({ type: "public-key", alg })),
      authenticatorSelection: { residentKey: "required", userVerification: "required" },
      attestation: "none", timeout: 120000,
    },
    signal,
  }).catch((error) => { throw plainly(error); });
  const { response } = made;
  return {
    client_data: base64url(response.clientDataJSON),
    authenticator_data: base64url(response.getAuthenticatorData()),
    public_key: base64url(response.getPublicKey()),
    algorithm: response.getPublicKeyAlgorithm(),
  };
}
