// Passkeys: the browser or a security key signs after it has verified the user.

import { base64url, sha256 } from "./keys.js";

const PREFIX = "passkey:";
const ALGORITHMS = [-8, -7, -257];
const TIMEOUT_MS = 120000;

export function isSupported() {
  return window.PublicKeyCredential !== undefined && navigator.credentials !== undefined;
}

function explainError(error) {
  if (error.name === "AbortError") return new Error("Cancelled.");
  if (error.name === "NotAllowedError") return new Error("No passkey was used. Try again.");
  if (error.name === "InvalidStateError") {
    return new Error("This device already has a passkey for this site.");
  }
  if (error.name === "SecurityError") {
    return new Error("Passkeys need a host name: open this page as https://… or http://localhost.");
  }
  return error;
}

export async function signDecision(view, decision, reason, signal) {
  const parts = ["interlock-approval-1", view.aud, view.id, view.args_sha256, decision, reason];
  const challenge = await sha256(parts.join("\n"));
  const credential = await navigator.credentials.get({
    publicKey: { challenge, userVerification: "required", timeout: TIMEOUT_MS }, signal,
  }).catch((error) => { throw explainError(error); });
  const { clientDataJSON, authenticatorData, signature } = credential.response;
  const proof = {
    id: base64url(credential.rawId), client_data: base64url(clientDataJSON),
    authenticator_data: base64url(authenticatorData), signature: base64url(signature),
    decision, reason,
  };
  return PREFIX + base64url(new TextEncoder().encode(JSON.stringify(proof)));
}

export async function create(code, name, signal) {
  const id = crypto.getRandomValues(new Uint8Array(16));
  const credential = await navigator.credentials.create({
    publicKey: {
      challenge: await sha256(`interlock-enrolment-1\n${code}`),
      rp: { name: "Interlock approvals" },
      user: { id, name, displayName: name },
      pubKeyCredParams: ALGORITHMS.map((alg) => ({ type: "public-key", alg })),
      authenticatorSelection: { residentKey: "required", userVerification: "required" },
      attestation: "none", timeout: TIMEOUT_MS,
    },
    signal,
  }).catch((error) => { throw explainError(error); });
  const { response } = credential;
  return {
    client_data: base64url(response.clientDataJSON),
    authenticator_data: base64url(response.getAuthenticatorData()),
    public_key: base64url(response.getPublicKey()),
    algorithm: response.getPublicKeyAlgorithm(),
  };
}
