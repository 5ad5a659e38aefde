// Elements of the page, its messages, and requests to the node. Untrusted text is always set as text,
// never as markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const ICON_PATHS = {
  alarm: "M12 3 2.5 20h19L12 3Zm0 6v5m0 3v.01",
  change: "M4 20h4L19 9l-4-4L4 16v4Zm9-13 4 4",
  plus: "M12 5v14M5 12h14",
  eye: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12Zm9.5 2.6a2.6 2.6 0 1 0 0-5.2 2.6 2.6 0 0 0 0 5.2Z",
  yes: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm-4-9 3 3 5.5-6",
  no: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm-3-12 6 6m0-6-6 6",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-13.5V12l3 2",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
  turning: "M12 3a9 9 0 1 0 9 9",
};

export function createIcon(name) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  const path = document.createElementNS(namespace, "path");
  const attributes = { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "aria-hidden": "true",
    "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round" };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  if (name === "turning") svg.setAttribute("class", "turning");
  path.setAttribute("d", ICON_PATHS[name]);
  svg.append(path);
  return svg;
}

// Invisible characters, control characters, and characters that change the direction of text. The page
// shows their numbers.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/u;

// Returns text as nodes in which each invisible character is replaced with its number.
export function escapeText(text) {
  const parts = [];
  let plain = "";
  for (const character of text) {
    if (!INVISIBLE.test(character)) { plain += character; continue; }
    if (plain) parts.push(plain);
    plain = "";
    const number = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(make("span", { class: "odd", title: "invisible or control character" },
      `U+${number}`));
  }
  if (plain) parts.push(plain);
  return parts;
}

export function createPairs(rows) {
  return make("dl", {}, rows.filter((row) => row[1]).map(([name, value, kind]) => [
    make("dt", {}, name),
    make("dd", { class: kind }, typeof value === "string" ? escapeText(value) : value),
  ]));
}

export function formatTime(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function formatDuration(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const pad = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

// -- the bar at the lower edge: a message, and the buttons

const find = (id) => document.getElementById(id);
let clearTimer = 0;

export function showMessage(text, isError = false) {
  find("said").textContent = text;
  find("said").className = isError ? "said bad" : "said";
  clearTimeout(clearTimer);
  if (text && !isError) clearTimer = setTimeout(() => { find("said").textContent = ""; }, 6000);
}

let currentWork = null;

// Replaces the buttons, and cancels the current work of `showProgress`.
export function showActions(...children) {
  currentWork?.abort();
  currentWork = null;
  const elements = children.flat(Infinity).filter(Boolean);
  find("actions").hidden = elements.length === 0;
  find("actions").replaceChildren(...elements);
}

// Shows a text and a Cancel button in the bar until `work` ends. `work` gets a signal, which Cancel
// aborts.
export async function showProgress(text, work) {
  const controller = new AbortController();
  const previous = [...find("actions").childNodes];
  showMessage("");
  showActions(
    make("p", { class: "waits", id: "waits", role: "status" }, createIcon("turning"), text),
    make("button", { type: "button", id: "cancel", onclick: () => controller.abort() }, "Cancel"));
  currentWork = controller;
  try {
    return await work(controller.signal);
  } finally {
    // Meanwhile, another view may have replaced the buttons.
    if (currentWork === controller) {
      currentWork = null;
      showActions(previous);
    }
  }
}

// -- the page

export function showPage(title, ...children) {
  document.title = `${title} · Interlock`;
  find("main").replaceChildren(...children.flat(Infinity).filter(Boolean));
}

export function setBadge(pending) {
  find("icon").setAttribute("href", pending ? "page/mark-pending.svg" : "page/mark.svg");
}

// Sends a request to the node: a POST if there is a body, otherwise a GET.
export async function request(path, body, headers = {}) {
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: { Accept: "application/json", ...headers,
      ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit", cache: "no-store", redirect: "error",
  }).catch(() => { throw new Error("Cannot reach the node. Start it, then try again."); });
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw createError(response.status, data);
  return data;
}

export function createError(status, data) {
  const error = new Error(data.message || `The node responded with HTTP ${status}.`);
  error.code = data.error || "";
  return error;
}
