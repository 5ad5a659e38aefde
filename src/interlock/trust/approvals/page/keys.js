// Keys of this browser: made or imported once, stored so that scripts can use but not read them, and
// used to sign what a person decides.

const KINDS = {
  EdDSA: { import: { name: "Ed25519" }, sign: { name: "Ed25519" } },
  ES256: { import: { name: "ECDSA", namedCurve: "P-256" },
    sign: { name: "ECDSA", hash: "SHA-256" } },
};
const PROOF_LASTS = 120;
const text = new TextEncoder();

export function base64url(data) {
  let raw = "";
  for (const one of new Uint8Array(data)) raw += String.fromCharCode(one);
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export async function sha256(words) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", text.encode(words)));
}

// -- kept in IndexedDB

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("interlock", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("keys", { keyPath: "kid" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function transact(mode, what) {
  const file = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const work = file.transaction("keys", mode);
      const request = what(work.objectStore("keys"));
      work.oncomplete = () => resolve(request.result);
      work.onerror = work.onabort = () => reject(work.error);
    });
  } finally {
    file.close();
  }
}

export async function kept() {
  try {
    return await transact("readonly", (keys) => keys.getAll());
  } catch {
    return []; // A private window may have no storage: a passkey still works.
  }
}

const keep = (key) => transact("readwrite", (keys) => keys.put(key));
export const forget = (kid) => transact("readwrite", (keys) => keys.delete(kid));

// -- made here, or brought along

async function thumbprint(jwk) {
  const members = jwk.kty === "OKP" ? { crv: jwk.crv, kty: jwk.kty, x: jwk.x }
    : { crv: jwk.crv, kty: jwk.kty, x: jwk.x, y: jwk.y };
  return base64url(await sha256(JSON.stringify(members)));
}

function publicPart(jwk) {
  const { kty, crv, x, y } = jwk;
  return y === undefined ? { kty, crv, x } : { kty, crv, x, y };
}

export async function fresh() {
  for (const [algorithm, kind] of Object.entries(KINDS)) {
    let pair;
    try {
      pair = await crypto.subtle.generateKey(kind.import, false, ["sign", "verify"]);
    } catch {
      continue; // Older browsers do not know Ed25519.
    }
    const jwk = publicPart(await crypto.subtle.exportKey("jwk", pair.publicKey));
    return { algorithm, key: pair.privateKey, jwk, kid: await thumbprint(jwk) };
  }
  throw new Error("This browser cannot make a key. Use a passkey or another browser.");
}

export async function keepFresh(made, name) {
  await keep({ kid: made.kid, name, algorithm: made.algorithm, key: made.key });
}

export async function bring(pem, passphrase, name) {
  const found = /-----BEGIN (ENCRYPTED )?PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END/.exec(pem);
  if (!found) throw new Error("This file is no private key made by `interlock keys new`.");
  let der = Uint8Array.from(atob(found[2].replace(/\s/g, "")), (one) => one.charCodeAt(0));
  if (found[1]) der = await unlocked(der, passphrase);
  for (const [algorithm, kind] of Object.entries(KINDS)) {
    let readable;
    try {
      // Readable for a moment only, to learn the public part; what is kept is not.
      readable = await crypto.subtle.importKey("pkcs8", der, kind.import, true, ["sign"]);
    } catch {
      continue;
    }
    const jwk = publicPart(await crypto.subtle.exportKey("jwk", readable));
    const key = await crypto.subtle.importKey("pkcs8", der, kind.import, false, ["sign"]);
    der.fill(0);
    const kid = await thumbprint(jwk);
    await keep({ kid, name, algorithm, key });
    return kid;
  }
  throw new Error("Only Ed25519 and P-256 keys can be used, and this browser may not support Ed25519.");
}

// -- an encrypted key file (PKCS #8 with PBES2), which browsers do not open by themselves

function pieces(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const tag = bytes[at];
    let size = bytes[at + 1];
    at += 2;
    if (size & 0x80) {
      const count = size & 0x7f;
      size = 0;
      for (const one of bytes.subarray(at, at + count)) size = size * 256 + one;
      at += count;
    }
    if (!(at + size <= bytes.length)) throw new Error("The key file is incomplete.");
    found.push({ tag, body: bytes.subarray(at, at + size) });
    at += size;
  }
  return found;
}

const inside = (piece) => pieces(piece.body);
const named = (piece) => [...piece.body].join(".");
const PBES2 = "42.134.72.134.247.13.1.5.13";
const PBKDF2 = "42.134.72.134.247.13.1.5.12";
const DIGESTS = { "42.134.72.134.247.13.2.7": "SHA-1", "42.134.72.134.247.13.2.9": "SHA-256",
  "42.134.72.134.247.13.2.11": "SHA-512" };
const CIPHERS = { "96.134.72.1.101.3.4.1.2": 128, "96.134.72.1.101.3.4.1.42": 256 };

async function unlocked(der, passphrase) {
  if (!passphrase) throw new Error("This key needs its passphrase.");
  const [how, locked] = inside(pieces(der)[0]);
  const [scheme, terms] = inside(how);
  const [derivation, cipher] = inside(terms);
  const [derives, settings] = inside(derivation);
  const [salt, rounds, ...more] = inside(settings);
  const prf = more.find((one) => one.tag === 0x30);
  const hash = prf ? DIGESTS[named(inside(prf)[0])] : "SHA-1";
  const [cipherName, iv] = inside(cipher);
  const length = CIPHERS[named(cipherName)];
  if (named(scheme) !== PBES2 || named(derives) !== PBKDF2 || !hash || !length) {
    throw new Error("This key file uses an encryption that this page does not support.");
  }
  const iterations = [...rounds.body].reduce((sum, one) => sum * 256 + one, 0);
  const secret = await crypto.subtle.importKey("raw", text.encode(passphrase), "PBKDF2", false,
    ["deriveKey"]);
  const key = await crypto.subtle.deriveKey({ name: "PBKDF2", hash, salt: salt.body, iterations },
    secret, { name: "AES-CBC", length }, false, ["decrypt"]);
  try {
    return new Uint8Array(await crypto.subtle.decrypt({ name: "AES-CBC", iv: iv.body }, key,
      locked.body));
  } catch {
    throw new Error("Wrong passphrase.");
  }
}

// -- signing

export async function signed(one, claims) {
  const now = Math.floor(Date.now() / 1000) + (claims.late || 0);
  const { late, ...said } = claims;
  const head = { alg: one.algorithm, typ: "JWT", kid: one.kid };
  const body = { ...said, iat: now, exp: now + PROOF_LASTS };
  const [left, right] = [head, body].map((part) => base64url(text.encode(JSON.stringify(part))));
  const words = text.encode(`${left}.${right}`);
  const mark = await crypto.subtle.sign(KINDS[one.algorithm].sign, one.key, words);
  return `${left}.${right}.${base64url(mark)}`;
}
