// JSON values for people: short values first, long text as text, nested values as a tree.

import { escapeText, make } from "./elements.js";

const MAX_SHORT_LENGTH = 160;
const TOKEN = /\s*([[\]{},:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,:[\]{}"]+)/gy;
const formatCount = (number, noun) =>
  `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// Parses JSON into a tree of {kind, ...}. A number stays the text that the node wrote, because a
// browser would round it. The parser is a loop, because only the node limits the nesting.
export function parseJson(text) {
  const tokens = [...text.matchAll(TOKEN)].map((match) => match[1]);
  const root = { kind: "list", items: [] };
  const open = [root];
  let key = null;
  for (let index = 0; index < tokens.length; index += 1) {
    const token = tokens[index];
    const parent = open[open.length - 1];
    if (token === "," || token === ":") continue;
    if (token === "}" || token === "]") { open.pop(); continue; }
    if (parent.kind === "object" && key === null) { key = JSON.parse(token); continue; }
    let value;
    if (token === "{") value = { kind: "object", items: [] };
    else if (token === "[") value = { kind: "list", items: [] };
    else if (token.startsWith('"')) value = { kind: "text", text: JSON.parse(token) };
    else value = { kind: "other", text: token };
    parent.items.push(parent.kind === "object" ? [key, value] : [null, value]);
    key = null;
    if (value.items) open.push(value);
  }
  return root.items[0][1];
}

const countLines = (text) => text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
const appendPointer = (pointer, name) =>
  `${pointer}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
const isShort = (value) => !value.items?.length
  && (value.items || (value.text.length <= MAX_SHORT_LENGTH && !value.text.includes("\n")));

// Returns whether a text could be mistaken for another value, so that it needs quotes.
function needsQuotes(text) {
  return text === "" || text !== text.trim() || /^["'“[{]/.test(text)
    || /^(?:-?\d[\d.eE+-]*|true|false|null)$/.test(text);
}

function renderShort(value, hidden) {
  if (hidden) return make("span", { class: "hid" }, "hidden (secret)");
  if (value.items) return make("span", { class: "n" }, value.kind === "list" ? "[ ]" : "{ }");
  if (value.kind === "other") return make("span", { class: "n" }, escapeText(value.text));
  return make("span", { class: "v" }, needsQuotes(value.text)
    ? ["“", escapeText(value.text), "”"] : escapeText(value.text));
}

export function renderText(text) {
  return make("pre", {}, escapeText(text));
}

function formatSize(value) {
  if (value.kind === "text") {
    return value.text.includes("\n") ? formatCount(countLines(value.text), "line")
      : formatCount(value.text.length, "character");
  }
  return formatCount(value.items.length, value.kind === "list" ? "item" : "field");
}

function listEntries(value) {
  return value.items.map(([name, member], index) => [name === null ? index : name, member]);
}

const formatName = (name, parent) => (parent.kind === "list" ? `${name + 1}` : escapeText(name));

function renderTree(value, pointer, masked) {
  return make("ul", { class: "tree" }, listEntries(value).map(([name, member]) => {
    const memberPointer = appendPointer(pointer, name);
    const key = make("span", { class: value.kind === "list" ? "k index" : "k" },
      formatName(name, value));
    if (masked.has(memberPointer)) return make("li", {}, key, renderShort(member, true));
    if (isShort(member)) return make("li", {}, key, renderShort(member));
    return make("li", {}, key, make("span", { class: "soft" }, formatSize(member)),
      renderLong(member, memberPointer, masked));
  }));
}

function renderLong(value, pointer, masked) {
  return value.items ? renderTree(value, pointer, masked) : renderText(value.text);
}

// Renders a value as a list of names and short values, and a block for each long value. `pointer` is
// the JSON pointer of the value, and `masked` has the pointers of the values that the node hides.
export function renderValue(value, pointer, masked) {
  if (masked.has(pointer)) return renderShort(value, true);
  if (isShort(value)) return make("p", { class: "soft" }, value.items ? "None" : renderShort(value));
  if (value.kind !== "object") return renderLong(value, pointer, masked);
  const entries = listEntries(value);
  const shortEntries = entries.filter(([name, member]) =>
    isShort(member) || masked.has(appendPointer(pointer, name)));
  const longEntries = entries.filter((entry) => !shortEntries.includes(entry));
  return [
    shortEntries.length ? make("dl", { class: "values" }, shortEntries.map(([name, member]) => [
      make("dt", {}, escapeText(name)),
      make("dd", {}, renderShort(member, masked.has(appendPointer(pointer, name)))),
    ])) : null,
    longEntries.map(([name, member]) => make("section", { class: "long" },
      make("h3", {}, escapeText(name), make("span", { class: "soft" }, formatSize(member))),
      renderLong(member, appendPointer(pointer, name), masked))),
  ];
}

// Renders arguments in one line: short values, then the names and sizes of long values. `cut` means
// that the text has only the beginning of long texts.
export function renderSummary(text, masked, cut) {
  const value = parseJson(text);
  if (value.kind !== "object") return renderShort(value.items ? { kind: "other", text } : value);
  const parts = listEntries(value).map(([name, member]) => {
    const hidden = masked.has(appendPointer("/arguments", name));
    const short = hidden || isShort(member);
    return [short ? 0 : 1, make("span", { class: "part" },
      make("span", { class: "k" }, escapeText(name)),
      short ? renderShort(member, hidden)
        : cut && !member.items ? escapeText(member.text.replace(/\s+/g, " "))
          : make("span", {}, `(${formatSize(member)})`))];
  });
  return parts.sort((a, b) => a[0] - b[0]).map(([, element]) => element);
}

// Renders the exact JSON, collapsed.
export function renderJson(title, text) {
  return make("details", {}, make("summary", {}, title), renderText(text));
}

// Renders the result of a tool: text as text, other content by its type, and the exact JSON.
export function renderResult(text) {
  const result = JSON.parse(text);
  const content = Array.isArray(result.content) ? result.content : [];
  const blocks = content.map((item) => {
    if (item.type === "text") return renderText(String(item.text));
    if (item.type === "resource" && typeof item.resource?.text === "string") {
      return renderText(item.resource.text);
    }
    const parts = [item.type, item.mimeType, item.name, item.uri || item.resource?.uri];
    return make("p", { class: "soft" }, escapeText(parts.filter(Boolean).join(" · ")));
  });
  return [blocks.length ? blocks : make("p", { class: "soft" }, "No text."),
    renderJson("Show as JSON", text)];
}
