// All pending calls, for an operator who signed in. The node pushes the list.

import { loadCodes } from "./codes.js";
import { createEffectMark, describeRule } from "./effects.js";
import { loadEnrolments } from "./operators.js";
import { renderSummary } from "./values.js";
import { createKeyForm, createSigner, currentSession, signIn, signOut } from "./signing.js";
import { createError, createIcon, escapeText, formatDuration, make, setBadge, showActions,
  showMessage, showPage } from "./elements.js";

const RETRY_DELAYS_MS = [1000, 2000, 5000, 10000, 30000];
const delay = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

// Renders the arguments in one line. Of long arguments the node sends only the beginning, which may
// be invalid JSON.
function renderArguments(call) {
  try {
    JSON.parse(call.arguments_text);
  } catch {
    return escapeText(call.arguments_text.replace(/\s+/g, " "));
  }
  return renderSummary(call.arguments_text, new Set(call.masked || []), call.arguments_cut);
}

// Yields the lists that the node pushes as server-sent events. EventSource cannot send the header
// with the session.
async function* streamLists(session, signal) {
  const response = await fetch("events", {
    headers: { Accept: "text/event-stream", "Interlock-Session": session },
    credentials: "omit", cache: "no-store", redirect: "error", signal,
  });
  if (!response.ok) throw createError(response.status, await response.json().catch(() => ({})));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).replaceAll("\r\n", "\n").split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart());
      // An event without data is a keep-alive.
      yield data.length ? JSON.parse(data.join("\n")) : null;
    }
  }
}

export async function showInbox() {
  let timer = 0;
  let cards = null;
  const heading = make("h1", { id: "count", role: "status" });
  const calls = make("div", { id: "calls" });
  const codes = make("div", { id: "others", class: "beside" });
  const enrolments = make("div", { id: "people", class: "beside" });
  const empty = make("section", { class: "empty" }, createIcon("yes"),
    make("p", {}, "New calls appear here automatically."));

  async function showSignIn(text) {
    cards?.forEach((card) => card.element.remove());
    cards = null;
    const signer = await createSigner();
    const button = make("button", { class: "go below", id: "look", type: "button",
      disabled: !signer.ready, onclick: startSession }, "Sign in");
    setBadge(false);
    clearInterval(timer);
    showPage("Pending calls", make("h1", {}, "Pending calls"),
      make("section", { class: "card" },
        make("p", {}, text), signer.field, button, createKeyForm(() => showSignIn(text))),
      make("p", { class: "soft small" }, "On the node itself: ",
        make("code", {}, "interlock approvals"), "."));
    showActions();

    async function startSession() {
      button.disabled = true;
      try {
        await signIn(signer);
        showMessage("");
        await followCalls(signer);
      } catch (error) {
        showMessage(error.message, true);
        button.disabled = false;
      }
    }
  }

  // Shows the lists that the node pushes, and reconnects when the connection is lost.
  async function followCalls(signer) {
    let controller = new AbortController();
    let failures = 0;
    const refresh = make("button", { type: "button", class: "more", id: "refresh", onclick: () => {
      failures = 0;
      controller.abort();
    } }, "Refresh");
    const live = make("p", { class: "live", id: "live", role: "status" });
    const showConnection = (text) => {
      live.classList.toggle("lost", text !== "");
      live.textContent = text || "Live";
    };
    const reconnect = () => controller.abort();
    const onVisible = () => { if (!document.hidden && failures > 0) controller.abort(); };
    document.addEventListener("visibilitychange", onVisible);
    showActions(live, refresh);
    showConnection("Connecting…");
    try {
      for (;;) {
        const session = currentSession();
        try {
          if (session === null) throw createError(401, { error: "unauthenticated" });
          for await (const list of streamLists(session, controller.signal)) {
            failures = 0;
            if (list !== null) await updateCalls(session, list.approvals, signer, reconnect);
            else if (!document.hidden) await updateSections(session, signer, reconnect);
            showConnection("");
          }
        } catch (error) {
          if (["unauthenticated", "forbidden"].includes(error.code)) {
            signOut();
            await showSignIn("Your session has ended. Sign in again to see pending calls.");
            return;
          }
        }
        if (!controller.signal.aborted) {
          showConnection("Connection lost. Retrying…");
          const milliseconds = RETRY_DELAYS_MS[Math.min(failures, RETRY_DELAYS_MS.length - 1)];
          failures += 1;
          await Promise.race([delay(milliseconds),
            new Promise((resolve) => { controller.signal.addEventListener("abort", resolve); })]);
        }
        if (controller.signal.aborted) controller = new AbortController();
      }
    } finally {
      document.removeEventListener("visibilitychange", onVisible);
    }
  }

  // Existing cards keep their elements, so that they do not lose focus and pointer.
  async function updateCalls(session, approvals, signer, reconnect) {
    const count = approvals.length;
    if (cards === null) {
      cards = new Map();
      showPage("", enrolments, heading, calls, empty, codes);
    }
    heading.textContent = count === 0 ? "No pending calls"
      : count === 1 ? "1 pending call" : `${count} pending calls`;
    document.title = `${count ? `(${count}) ` : ""}Pending calls · Interlock`;
    empty.hidden = count > 0;
    setBadge(count > 0);
    const now = performance.now();
    const pending = new Set(approvals.map((call) => call.id));
    for (const [id, card] of cards) {
      if (pending.has(id)) continue;
      card.element.remove();
      cards.delete(id);
    }
    for (const call of approvals) {
      if (!cards.has(call.id)) {
        const time = make("span", { class: "time" });
        cards.set(call.id, { time, element: createCard(call, time) });
        calls.append(cards.get(call.id).element);
      }
      cards.get(call.id).ends = now + call.seconds_left * 1000;
    }
    clearInterval(timer);
    timer = setInterval(updateTimes, 1000);
    updateTimes();
    await updateSections(session, signer, reconnect);
  }

  // Loads the enrolments and the codes for agents, which the node does not push.
  async function updateSections(session, signer, reconnect) {
    const sections = await Promise.all([
      loadEnrolments(session, signer, reconnect), loadCodes(session, reconnect, showMessage)]);
    for (const [index, container] of [enrolments, codes].entries()) {
      if (container.dataset.key === sections[index].key) continue;
      container.dataset.key = sections[index].key;
      container.replaceChildren(...sections[index].elements.flat(Infinity));
    }
  }

  function updateTimes() {
    for (const { time, ends } of cards.values()) {
      const seconds = (ends - performance.now()) / 1000;
      time.textContent = seconds > 0 ? `${formatDuration(seconds)} left` : "expired";
    }
  }

  function createCard(call, time) {
    const [rule, reason] = describeRule(call);
    return make("a", { class: "card item", href: call.id },
      make("p", { class: "marks" }, createEffectMark(call), time),
      make("p", { class: "tool" }, escapeText(call.tool)),
      make("p", { class: "brief" }, renderArguments(call)),
      make("p", { class: "soft small" }, escapeText(`${call.caller.name} · `),
        call.at ? escapeText(`pending at node ${call.at} · `) : "",
        escapeText(reason ? `${rule}: ${reason}` : rule)));
  }

  if (currentSession() === null) await showSignIn("Sign in as an operator to see pending calls.");
  else await followCalls(await createSigner());
}
