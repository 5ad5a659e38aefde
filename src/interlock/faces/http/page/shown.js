// Building what is shown. Text from elsewhere is only ever set as text, never as markup.

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

// Characters that hide, or that turn the direction of what follows: shown by their number.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/u;

export function visible(text) {
  const parts = [];
  let plain = "";
  for (const one of text) {
    if (!ODD.test(one)) { plain += one; continue; }
    if (plain) parts.push(plain);
    plain = "";
    const number = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(make("span", { class: "odd", title: "a character that cannot be seen" },
      `U+${number}`));
  }
  if (plain) parts.push(plain);
  return parts;
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\d[\d.eE+-]*|true|false|null/g;

// JSON as the node wrote it: parsing it here could change a large number.
export function json(text, mask) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(TOKEN)) {
    if (found.index > from) parts.push(...visible(text.slice(from, found.index)));
    from = found.index + found[0].length;
    if (found[2] !== undefined) {
      parts.push(make("span", { class: "k" }, visible(found[1])), found[2]);
    } else if (mask && found[1] && found[1].startsWith(`"${mask} (hidden: `)) {
      parts.push(make("span", { class: "hid", title: "The node has it and does not show it" },
        found[1].slice(mask.length + 3, -2)));
    } else {
      parts.push(make("span", { class: found[1] ? "v" : "n" }, visible(found[0])));
    }
  }
  if (from < text.length) parts.push(...visible(text.slice(from)));
  return make("pre", { tabindex: "0" }, parts);
}

export function pairs(rows) {
  return make("dl", {}, rows.filter((row) => row[1]).map(([name, value, kind]) => [
    make("dt", {}, name),
    make("dd", { class: kind }, typeof value === "string" ? visible(value) : value),
  ]));
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

export function span(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (one) => String(one).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

let quiet = 0;

export function say(text, bad = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.className = bad ? "said bad" : "said";
  clearTimeout(quiet);
  if (text && !bad) quiet = setTimeout(() => { said.textContent = ""; }, 6000);
}

export function show(title, ...inside) {
  document.title = `${title} · Interlock`;
  document.getElementById("main").replaceChildren(...inside.flat(Infinity).filter(Boolean));
}

export async function ask(path, sent, headers = {}) {
  const answer = await fetch(path, {
    method: sent === undefined ? "GET" : "POST",
    headers: { Accept: "application/json", ...headers,
      ...(sent === undefined ? {} : { "Content-Type": "application/json" }) },
    body: sent === undefined ? undefined : JSON.stringify(sent),
    credentials: "omit", cache: "no-store", redirect: "error",
  }).catch(() => { throw new Error("The node cannot be reached. Is it running?"); });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(told.message || `The node answered with HTTP ${answer.status}.`);
    error.word = told.error || "";
    throw error;
  }
  return told;
}
