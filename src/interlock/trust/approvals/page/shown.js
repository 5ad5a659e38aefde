// Elements, words and requests. Text from elsewhere is only ever set as text, never as markup.

export function make(tag, props = {}, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== ""));
  return node;
}

const DRAWINGS = {
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

export function drawing(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  const look = { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "aria-hidden": "true",
    "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round" };
  for (const [key, value] of Object.entries(look)) svg.setAttribute(key, value);
  if (name === "turning") svg.setAttribute("class", "turning");
  path.setAttribute("d", DRAWINGS[name]);
  svg.append(path);
  return svg;
}

// Invisible and control characters, and those that change the direction of text: shown by number.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/u;

export function visible(text) {
  const parts = [];
  let plain = "";
  for (const one of text) {
    if (!ODD.test(one)) { plain += one; continue; }
    if (plain) parts.push(plain);
    plain = "";
    const number = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(make("span", { class: "odd", title: "invisible or control character" },
      `U+${number}`));
  }
  if (plain) parts.push(plain);
  return parts;
}

export function pairs(rows) {
  return make("dl", {}, rows.filter((row) => row[1]).map(([name, value, kind]) => [
    make("dt", {}, name),
    make("dd", { class: kind }, typeof value === "string" ? visible(value) : value),
  ]));
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function span(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (one) => String(one).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// -- the bar at the lower edge: one message, and what can be done

const part = (id) => document.getElementById(id);
let quiet = 0;

export function say(text, bad = false) {
  part("said").textContent = text;
  part("said").className = bad ? "said bad" : "said";
  clearTimeout(quiet);
  if (text && !bad) quiet = setTimeout(() => { part("said").textContent = ""; }, 6000);
}

let current = null;

// Replaces what can be done. What the old actions wait for is cancelled.
export function actions(...inside) {
  current?.abort();
  current = null;
  const shown = inside.flat(Infinity).filter(Boolean);
  part("actions").hidden = shown.length === 0;
  part("actions").replaceChildren(...shown);
}

// While `work` goes on, the bar says so. `work` gets a signal: Cancel aborts it.
export async function waiting(words, work) {
  const cancel = new AbortController();
  const before = [...part("actions").childNodes];
  say("");
  actions(make("p", { class: "waits", id: "waits", role: "status" }, drawing("turning"), words),
    make("button", { type: "button", id: "cancel", onclick: () => cancel.abort() }, "Cancel"));
  current = cancel;
  try {
    return await work(cancel.signal);
  } finally {
    // Another view may be there by now, with actions of its own.
    if (current === cancel) {
      current = null;
      actions(before);
    }
  }
}

// -- the page

export function show(title, ...inside) {
  document.title = `${title} · Interlock`;
  part("main").replaceChildren(...inside.flat(Infinity).filter(Boolean));
}

export function badge(pending) {
  part("icon").setAttribute("href", pending ? "page/mark-pending.svg" : "page/mark.svg");
}

export async function ask(path, sent, headers = {}) {
  const answer = await fetch(path, {
    method: sent === undefined ? "GET" : "POST",
    headers: { Accept: "application/json", ...headers,
      ...(sent === undefined ? {} : { "Content-Type": "application/json" }) },
    body: sent === undefined ? undefined : JSON.stringify(sent),
    credentials: "omit", cache: "no-store", redirect: "error",
  }).catch(() => { throw new Error("The node does not answer. Is it running?"); });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw failure(answer.status, told);
  return told;
}

export function failure(status, told) {
  const error = new Error(told.message || `The node answered with HTTP ${status}.`);
  error.word = told.error || "";
  return error;
}
