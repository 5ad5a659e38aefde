// Keys of this browser: they are made or imported once, stored so that scripts can use but not read
// them, and sign the decisions of a person.

const KINDS = {
  EdDSA: { import: { name: "Ed25519" }, sign: { name: "Ed25519" } },
  ES256: { import: { name: "ECDSA", namedCurve: "P-256" },
    sign: { name: "ECDSA", hash: "SHA-256" } },
};
const PROOF_LIFETIME_SECONDS = 120;
const encoder = new TextEncoder();

export function base64url(data) {
  let binary = "";
  for (const byte of new Uint8Array(data)) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export async function sha256(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(text)));
}

// -- storage in IndexedDB

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("interlock", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("keys", { keyPath: "kid" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function transact(mode, createRequest) {
  const database = await openDatabase();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction("keys", mode);
      const request = createRequest(transaction.objectStore("keys"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

export async function load() {
  try {
    return await transact("readonly", (keys) => keys.getAll());
  } catch {
    return []; // A private window may have no storage. Passkeys work without it.
  }
}

const save = (key) => transact("readwrite", (keys) => keys.put(key));

// -- generated and imported keys

async function thumbprint(jwk) {
  const members = jwk.kty === "OKP" ? { crv: jwk.crv, kty: jwk.kty, x: jwk.x }
    : { crv: jwk.crv, kty: jwk.kty, x: jwk.x, y: jwk.y };
  return base64url(await sha256(JSON.stringify(members)));
}

function publicMembers(jwk) {
  const { kty, crv, x, y } = jwk;
  return y === undefined ? { kty, crv, x } : { kty, crv, x, y };
}

export async function generate() {
  for (const [algorithm, kind] of Object.entries(KINDS)) {
    let pair;
    try {
      pair = await crypto.subtle.generateKey(kind.import, false, ["sign", "verify"]);
    } catch {
      continue; // Older browsers do not support Ed25519.
    }
    const jwk = publicMembers(await crypto.subtle.exportKey("jwk", pair.publicKey));
    return { algorithm, key: pair.privateKey, jwk, kid: await thumbprint(jwk) };
  }
  throw new Error("This browser cannot make a key. Use a passkey or another browser.");
}

export async function saveGenerated({ kid, algorithm, key }, name) {
  await save({ kid, name, algorithm, key });
}

export async function importPem(pem, passphrase, name) {
  const match = /-----BEGIN (ENCRYPTED )?PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END/.exec(pem);
  if (!match) {
    throw new Error("This file is not a private key. Choose a file made by `interlock keys new`.");
  }
  let der = Uint8Array.from(atob(match[2].replace(/\s/g, "")),
    (character) => character.charCodeAt(0));
  if (match[1]) der = await decryptKey(der, passphrase);
  for (const [algorithm, kind] of Object.entries(KINDS)) {
    let readableKey;
    try {
      // This key can be exported, to get its public part. The stored key cannot.
      readableKey = await crypto.subtle.importKey("pkcs8", der, kind.import, true, ["sign"]);
    } catch {
      continue;
    }
    const jwk = publicMembers(await crypto.subtle.exportKey("jwk", readableKey));
    const key = await crypto.subtle.importKey("pkcs8", der, kind.import, false, ["sign"]);
    der.fill(0);
    const kid = await thumbprint(jwk);
    await save({ kid, name, algorithm, key });
    return kid;
  }
  throw new Error("Only Ed25519 and P-256 keys are supported, and this browser may not support "
    + "Ed25519.");
}

// -- encrypted key files (PKCS #8 with PBES2, RFC 8018), which browsers do not import

// Parses a sequence of DER values.
function parseDer(bytes) {
  const values = [];
  for (let offset = 0; offset < bytes.length;) {
    const tag = bytes[offset];
    let size = bytes[offset + 1];
    offset += 2;
    if (size & 0x80) {
      const count = size & 0x7f;
      size = 0;
      for (const byte of bytes.subarray(offset, offset + count)) size = size * 256 + byte;
      offset += count;
    }
    if (!(offset + size <= bytes.length)) throw new Error("The key file is incomplete.");
    values.push({ tag, body: bytes.subarray(offset, offset + size) });
    offset += size;
  }
  return values;
}

const parseBody = (value) => parseDer(value.body);
const formatOid = (value) => [...value.body].join(".");
const PBES2 = "42.134.72.134.247.13.1.5.13";
const PBKDF2 = "42.134.72.134.247.13.1.5.12";
const DIGESTS = { "42.134.72.134.247.13.2.7": "SHA-1", "42.134.72.134.247.13.2.9": "SHA-256",
  "42.134.72.134.247.13.2.11": "SHA-512" };
const CIPHERS = { "96.134.72.1.101.3.4.1.2": 128, "96.134.72.1.101.3.4.1.42": 256 };

async function decryptKey(der, passphrase) {
  if (!passphrase) throw new Error("This key file is encrypted. Enter its passphrase.");
  const [algorithm, encrypted] = parseBody(parseDer(der)[0]);
  const [scheme, parameters] = parseBody(algorithm);
  const [derivation, cipher] = parseBody(parameters);
  const [derivationOid, settings] = parseBody(derivation);
  const [salt, rounds, ...options] = parseBody(settings);
  const prf = options.find((option) => option.tag === 0x30);
  const hash = prf ? DIGESTS[formatOid(parseBody(prf)[0])] : "SHA-1";
  const [cipherOid, iv] = parseBody(cipher);
  const length = CIPHERS[formatOid(cipherOid)];
  if (formatOid(scheme) !== PBES2 || formatOid(derivationOid) !== PBKDF2 || !hash || !length) {
    throw new Error("This key file uses an encryption that this page does not support.");
  }
  const iterations = [...rounds.body].reduce((sum, byte) => sum * 256 + byte, 0);
  const secret = await crypto.subtle.importKey("raw", encoder.encode(passphrase), "PBKDF2", false,
    ["deriveKey"]);
  const key = await crypto.subtle.deriveKey({ name: "PBKDF2", hash, salt: salt.body, iterations },
    secret, { name: "AES-CBC", length }, false, ["decrypt"]);
  try {
    return new Uint8Array(await crypto.subtle.decrypt({ name: "AES-CBC", iv: iv.body }, key,
      encrypted.body));
  } catch {
    throw new Error("Wrong passphrase.");
  }
}

// -- signing

export async function signProof(key, claims, clockOffset) {
  const now = Math.floor(Date.now() / 1000) + (clockOffset || 0);
  const header = { alg: key.algorithm, typ: "JWT", kid: key.kid };
  const payload = { ...claims, iat: now, exp: now + PROOF_LIFETIME_SECONDS };
  const input = [header, payload].map((part) => base64url(encoder.encode(JSON.stringify(part))))
    .join(".");
  const signature = await crypto.subtle.sign(KINDS[key.algorithm].sign, key.key,
    encoder.encode(input));
  return `${input}.${base64url(signature)}`;
}
