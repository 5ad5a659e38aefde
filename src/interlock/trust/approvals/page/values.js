// JSON values for people: short values first, long text as text, nested values as a tree.

import { make, visible } from "./shown.js";

const SHORT = 160;
const TOKEN = /\s*([[\]{},:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,:[\]{}"]+)/gy;
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// JSON as a tree of {kind, ...}. A number stays the text that the node wrote: a browser would round
// it. A loop, not a recursion: nesting is limited by the node only.
export function parse(text) {
  const tokens = [...text.matchAll(TOKEN)].map((found) => found[1]);
  const root = { kind: "list", items: [] };
  const open = [root];
  let key = null;
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at];
    const into = open[open.length - 1];
    if (token === "," || token === ":") continue;
    if (token === "}" || token === "]") { open.pop(); continue; }
    if (into.kind === "object" && key === null) { key = JSON.parse(token); continue; }
    let value;
    if (token === "{") value = { kind: "object", items: [] };
    else if (token === "[") value = { kind: "list", items: [] };
    else if (token.startsWith('"')) value = { kind: "text", text: JSON.parse(token) };
    else value = { kind: "other", text: token };
    into.items.push(into.kind === "object" ? [key, value] : [null, value]);
    key = null;
    if (value.items) open.push(value);
  }
  return root.items[0][1];
}

const lines = (text) => text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
const pointer = (above, name) =>
  `${above}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
const isShort = (value) => !value.items?.length
  && (value.items || (value.text.length <= SHORT && !value.text.includes("\n")));

// Text that could be taken for something else is quoted.
function quoted(text) {
  return text === "" || text !== text.trim() || /^["'“[{]/.test(text)
    || /^(?:-?\d[\d.eE+-]*|true|false|null)$/.test(text);
}

function short(value, hidden) {
  if (hidden) return make("span", { class: "hid" }, "hidden (secret)");
  if (value.items) return make("span", { class: "n" }, value.kind === "list" ? "[ ]" : "{ }");
  if (value.kind === "other") return make("span", { class: "n" }, visible(value.text));
  return make("span", { class: "v" }, quoted(value.text) ? ["“", visible(value.text), "”"]
    : visible(value.text));
}

export function block(text) {
  return make("pre", {}, visible(text));
}

function size(value) {
  if (value.kind === "text") {
    return value.text.includes("\n") ? count(lines(value.text), "line")
      : count(value.text.length, "character");
  }
  return count(value.items.length, value.kind === "list" ? "item" : "field");
}

function entries(value) {
  return value.items.map(([name, one], index) => [name === null ? index : name, one]);
}

const label = (name, of) => (of.kind === "list" ? `${name + 1}` : visible(name));

function tree(value, at, masked) {
  return make("ul", { class: "tree" }, entries(value).map(([name, one]) => {
    const here = pointer(at, name);
    const key = make("span", { class: value.kind === "list" ? "k index" : "k" }, label(name, value));
    if (masked.has(here)) return make("li", {}, key, short(one, true));
    if (isShort(one)) return make("li", {}, key, short(one));
    return make("li", {}, key, make("span", { class: "soft" }, size(one)), long(one, here, masked));
  }));
}

function long(value, at, masked) {
  return value.items ? tree(value, at, masked) : block(value.text);
}

// A value as a list of names and short values, then one block for each long one. `masked`: the
// pointers of what the node keeps hidden; `at`: the pointer of this value.
export function values(value, at, masked) {
  if (masked.has(at)) return short(value, true);
  if (isShort(value)) return make("p", { class: "soft" }, value.items ? "None" : short(value));
  if (value.kind !== "object") return long(value, at, masked);
  const all = entries(value);
  const brief = all.filter(([name, one]) => isShort(one) || masked.has(pointer(at, name)));
  const rest = all.filter((one) => !brief.includes(one));
  return [
    brief.length ? make("dl", { class: "values" }, brief.map(([name, one]) => [
      make("dt", {}, visible(name)),
      make("dd", {}, short(one, masked.has(pointer(at, name)))),
    ])) : null,
    rest.map(([name, one]) => make("section", { class: "long" },
      make("h3", {}, visible(name), make("span", { class: "soft" }, size(one))),
      long(one, pointer(at, name), masked))),
  ];
}

// The same in one line: short values, then the names and sizes of long ones. `cut`: only the beginning
// of long text is there.
export function summary(text, masked, cut) {
  const value = parse(text);
  if (value.kind !== "object") return short(value.items ? { kind: "other", text } : value);
  const parts = entries(value).map(([name, one]) => {
    const hidden = masked.has(pointer("/arguments", name));
    const brief = hidden || isShort(one);
    return [brief ? 0 : 1, make("span", { class: "part" }, make("span", { class: "k" }, visible(name)),
      brief ? short(one, hidden) : cut && !one.items ? visible(one.text.replace(/\s+/g, " "))
        : make("span", {}, `(${size(one)})`))];
  });
  return parts.sort((a, b) => a[0] - b[0]).map(([, shown]) => shown);
}

// The exact JSON, behind a fold.
export function fold(title, text) {
  return make("details", {}, make("summary", {}, title), block(text));
}

// What a tool answered: its text as text, anything else by its kind, the whole behind a fold.
export function answered(text) {
  const told = JSON.parse(text);
  const parts = Array.isArray(told.content) ? told.content : [];
  const shown = parts.map((one) => {
    if (one.type === "text") return block(String(one.text));
    if (one.type === "resource" && typeof one.resource?.text === "string") {
      return block(one.resource.text);
    }
    const what = [one.type, one.mimeType, one.name, one.uri || one.resource?.uri];
    return make("p", { class: "soft" }, visible(what.filter(Boolean).join(" · ")));
  });
  return [shown.length ? shown : make("p", { class: "soft" }, "No text."), fold("Show as JSON", text)];
}
