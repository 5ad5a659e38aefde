// All pending calls, for an operator who signed in. The list is pushed by the node.

import { codes } from "./codes.js";
import { chip, held } from "./effects.js";
import { operators } from "./operators.js";
import { summary } from "./values.js";
import { session, setup, signer, signIn, signOut } from "./signing.js";
import { actions, ask, badge, drawing, failure, make, say, show, span, visible } from "./shown.js";

const RETRIES = [1000, 2000, 5000, 10000, 30000];
const later = (wait) => new Promise((done) => { setTimeout(done, wait); });

// The arguments in one line. Of long ones the node sends only the beginning, which may be no JSON.
function brief(one) {
  try {
    JSON.parse(one.arguments_text);
  } catch {
    return visible(one.arguments_text.replace(/\s+/g, " "));
  }
  return summary(one.arguments_text, new Set(one.masked || []), one.arguments_cut);
}

// The lists that the node pushes, as server-sent events. An EventSource cannot send the session.
async function* pushed(known, signal) {
  const answer = await fetch("events", {
    headers: { Accept: "text/event-stream", "Interlock-Session": known },
    credentials: "omit", cache: "no-store", redirect: "error", signal,
  });
  if (!answer.ok) throw failure(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).replaceAll("\r\n", "\n").split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart());
      // Without data it is a sign of life.
      yield data.length ? JSON.parse(data.join("\n")) : null;
    }
  }
}

export async function inbox() {
  let ticking = 0;
  let cards = null;
  const heading = make("h1", { id: "count", role: "status" });
  const calls = make("div", { id: "calls" });
  const others = make("div", { id: "others", class: "beside" });
  const people = make("div", { id: "people", class: "beside" });
  const empty = make("section", { class: "empty" }, drawing("yes"),
    make("p", {}, "New calls appear here automatically."));

  async function form(words) {
    cards?.forEach((card) => card.element.remove());
    cards = null;
    const signs = await signer();
    const button = make("button", { class: "go below", id: "look", type: "button",
      disabled: !signs.ready, onclick: look }, "Sign in");
    badge(false);
    clearInterval(ticking);
    show("Pending calls", make("h1", {}, "Pending calls"),
      make("section", { class: "card" },
        make("p", {}, words), signs.field, button, setup(() => form(words))),
      make("p", { class: "soft small" }, "On the node itself: ",
        make("code", {}, "interlock approvals"), "."));
    actions();

    async function look() {
      button.disabled = true;
      try {
        await signIn(signs);
        say("");
        await follow(signs);
      } catch (error) {
        say(error.message, true);
        button.disabled = false;
      }
    }
  }

  // Shows what the node pushes, and asks again when the connection is lost.
  async function follow(signs) {
    let stop = new AbortController();
    let failures = 0;
    const refresh = make("button", { type: "button", class: "more", id: "refresh", onclick: () => {
      failures = 0;
      stop.abort();
    } }, "Refresh");
    const live = make("p", { class: "live", id: "live", role: "status" });
    const tell = (words) => {
      live.classList.toggle("lost", words !== "");
      live.textContent = words || "Live";
    };
    const again = () => stop.abort();
    const woken = () => { if (!document.hidden && failures > 0) stop.abort(); };
    document.addEventListener("visibilitychange", woken);
    actions(live, refresh);
    tell("Connecting…");
    try {
      for (;;) {
        const known = session();
        try {
          if (known === null) throw failure(401, { error: "unauthenticated" });
          for await (const told of pushed(known, stop.signal)) {
            failures = 0;
            if (told !== null) await list(known, told.approvals, signs, again);
            else if (!document.hidden) await beside(known, signs, again);
            tell("");
          }
        } catch (error) {
          if (["unauthenticated", "forbidden"].includes(error.word)) {
            signOut();
            await form("Your session has ended. Sign in again to see pending calls.");
            return;
          }
        }
        if (!stop.signal.aborted) {
          tell("Connection lost. Retrying…");
          const wait = RETRIES[Math.min(failures, RETRIES.length - 1)];
          failures += 1;
          await Promise.race([later(wait),
            new Promise((done) => { stop.signal.addEventListener("abort", done); })]);
        }
        if (stop.signal.aborted) stop = new AbortController();
      }
    } finally {
      document.removeEventListener("visibilitychange", woken);
    }
  }

  // Cards that are there already stay the same elements: focus and pointer do not lose them.
  async function list(known, approvals, signs, again) {
    const number = approvals.length;
    if (cards === null) {
      cards = new Map();
      show("", people, heading, calls, empty, others);
    }
    heading.textContent = number === 0 ? "No pending calls"
      : number === 1 ? "1 pending call" : `${number} pending calls`;
    document.title = `${number ? `(${number}) ` : ""}Pending calls · Interlock`;
    empty.hidden = number > 0;
    badge(number > 0);
    const now = performance.now();
    const pending = new Set(approvals.map((one) => one.id));
    for (const [id, card] of cards) {
      if (pending.has(id)) continue;
      card.element.remove();
      cards.delete(id);
    }
    for (const one of approvals) {
      if (!cards.has(one.id)) {
        const time = make("span", { class: "time" });
        cards.set(one.id, { time, element: item(one, time) });
        calls.append(cards.get(one.id).element);
      }
      cards.get(one.id).ends = now + one.seconds_left * 1000;
    }
    clearInterval(ticking);
    ticking = setInterval(tick, 1000);
    tick();
    await beside(known, signs, again);
  }

  // What the node does not push: enrolments, and codes for agents.
  async function beside(known, signs, again) {
    const told = await Promise.all([operators(known, signs, again), codes(known, again, say)]);
    for (const [index, place] of [people, others].entries()) {
      if (place.dataset.key === told[index].key) continue;
      place.dataset.key = told[index].key;
      place.replaceChildren(...told[index].shown.flat(Infinity));
    }
  }

  function tick() {
    for (const { time, ends } of cards.values()) {
      const left = (ends - performance.now()) / 1000;
      time.textContent = left > 0 ? `${span(left)} left` : "expired";
    }
  }

  function item(one, time) {
    const [rule, reason] = held(one);
    return make("a", { class: "card item", href: one.id },
      make("p", { class: "marks" }, chip(one), time),
      make("p", { class: "tool" }, visible(one.tool)),
      make("p", { class: "brief" }, brief(one)),
      make("p", { class: "soft small" }, visible(`${one.caller.name} · `),
        one.at ? visible(`held by node ${one.at} · `) : "",
        visible(reason ? `${rule}: ${reason}` : rule)));
  }

  if (session() === null) await form("Sign in as an operator to see pending calls.");
  else await follow(await signer());
}
