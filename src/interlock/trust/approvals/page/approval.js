// One call, and the decision about it.

import { createEffectMark, describeRule, findEffect } from "./effects.js";
import { parseJson, renderJson, renderResult, renderValue } from "./values.js";
import { clockOffset, createKeyForm, createSigner, requestAsOperator } from "./signing.js";
import { createIcon, createPairs, escapeText, formatDuration, formatTime, make, request, setBadge,
  showActions, showMessage, showPage } from "./elements.js";

const KINDS = { local: "program on the node’s machine", token: "access token",
  jwt: "signed in", introspection: "signed in", certificate: "client certificate",
  parent: "parent node" };
const STATES = {
  done: ["green", "yes", "Approved and done"],
  refused: ["grey", "no", "Rejected"],
  passed_on: ["green", "yes", "Approved: sent to the node where the call is pending"],
  expired: ["grey", "clock", "Expired"],
  void: ["grey", "no", "No longer valid"],
  lost: ["amber", "alarm", "Outcome unknown"],
};
const NOTES = {
  expired: "No operator decided in time. The call was not executed. The caller can request it again.",
  void: "The tool, its arguments or the policy changed after the request. "
    + "The call was not executed.",
  lost: "The node stopped during the call. It does not retry the call.",
};
const LINE_HEIGHT = 22;

export async function showApproval(id) {
  let view = null;
  let timer = 0;
  let events = null;
  let result = null;
  let endWasVisible = false;
  let endObserver = null;
  let reasonText = "";

  function startCountdown() {
    const label = document.getElementById("left");
    clearInterval(timer);
    label.hidden = view.state !== "pending";
    if (label.hidden) return;
    const ends = performance.now() + view.seconds_left * 1000;
    const update = () => {
      const seconds = (ends - performance.now()) / 1000;
      label.textContent = seconds > 0 ? `${formatDuration(seconds)} left` : "expired";
      label.classList.toggle("soon", seconds < 60);
      if (seconds <= 0) clearInterval(timer);
    };
    update();
    timer = setInterval(update, 500);
  }

  // -- the call

  function createTitle() {
    return [
      make("p", { class: "tool", id: "tool" }, escapeText(view.tool)),
      view.description ? make("p", { class: "words quote" }, escapeText(view.description)) : null,
    ];
  }

  function createRequestCard() {
    const [rule, reason] = describeRule(view);
    const caller = view.caller.above ? `${view.caller.above}, through ${view.caller.name}`
      : view.caller.name;
    return make("section", { class: "card", id: "request" }, make("h2", {}, "Request"),
      createPairs([
        ["Caller", `${caller} (${KINDS[view.caller.kind] || view.caller.kind})`],
        ["Route", view.route.length > 2 ? view.route.join(" › ") : ""],
        ["Node", view.at ? `${view.at}, a child node, which reports all of this` : ""],
        ["Proposal", view.proposal ? `by ${view.proposal.by} in topic ${view.proposal.topic}; `
          + "all participants of the topic see the outcome" : ""],
        ["Rule", make("span", { id: "rule" }, make("code", {}, escapeText(rule)),
          reason ? make("span", { class: "why" }, escapeText(reason)) : null)],
      ]), make("details", {}, make("summary", {}, "Technical details"), createPairs([
        ["Requested", formatTime(view.created)], ["Server", view.server],
        ["Approval id", view.id, "code"], ["Digest", view.args_sha256, "code"],
        ["Tool contract", view.contract, "code"], ["Policy version", view.policy, "code"],
        ["Node id", view.aud, "code"],
        ["Required proof",
          view.action === "verify" ? "key or passkey of a person" : "any valid proof"],
      ])));
  }

  function createValueCards(reveal) {
    const masked = new Set(view.revealed ? [] : view.masked || []);
    const end = make("div", { class: "end", id: "end" });
    const createCard = (cardId, title, text, pointer, isLast) => (text
      ? make("section", { class: "card" }, make("h2", {}, title),
        make("div", { id: cardId }, renderValue(parseJson(text), pointer, masked)),
        isLast ? end : null, renderJson("Show as JSON", text)) : null);
    const cards = [
      masked.size && reveal ? make("div", { class: "note", id: "masked" },
        make("p", {}, createIcon("lock"), masked.size === 1 ? "1 value is hidden: it is a secret."
          : `${masked.size} values are hidden: they are secrets.`),
        make("button", { type: "button", id: "reveal", onclick: reveal }, "Reveal")) : null,
      createCard("arguments", "Arguments", view.arguments_text, "/arguments", !view.meta_text),
      createCard("beside", "Metadata of the call", view.meta_text, "/meta", true),
    ];
    return end.parentNode ? cards : [...cards, end];
  }

  // -- the decision

  async function createDecision() {
    const signer = await createSigner();
    const hasMasked = (view.masked || []).length > 0;
    const reason = make("textarea", { id: "reason", rows: "2", maxlength: "500",
      oninput: () => { reasonText = reason.value; } });
    reason.value = reasonText;
    const accept = make("input", { type: "checkbox", id: "accept", onchange: update });
    const rejectButton = make("button", { type: "button", id: "refuse", disabled: !signer.ready,
      onclick: () => decide("refuse") }, "Reject");
    const approveButton = make("button", { type: "button", id: "approve", disabled: true,
      class: view.effect === "irreversible" ? "go grave" : "go", "aria-describedby": "hint",
      onclick: () => decide("approve") }, "Approve");
    const more = make("button", { type: "button", class: "more", id: "more",
      onclick: scrollScreen });
    const hint = make("div", { class: "hint", id: "hint" });
    let busy = false;

    const findBar = () => document.getElementById("bar");
    // Returns the pixels between the bar and the end of the arguments. Negative: the end is above it.
    const pixelsBelow = () => document.getElementById("end").getBoundingClientRect().top
      - findBar().getBoundingClientRect().top;

    function scrollScreen() {
      const screen = findBar().getBoundingClientRect().top - 2 * LINE_HEIGHT;
      scrollBy({ top: pixelsBelow() > 0 ? Math.min(screen, pixelsBelow() + 2 * LINE_HEIGHT)
        : pixelsBelow() - 2 * LINE_HEIGHT });
    }

    function update() {
      const accepted = !hasMasked || view.revealed || accept.checked;
      approveButton.disabled = busy || !signer.ready || !endWasVisible || !accepted;
      rejectButton.disabled = busy || !signer.ready;
      const pixels = pixelsBelow();
      const lines = Math.ceil(pixels / LINE_HEIGHT);
      more.textContent = pixels > 0 ? `${lines} more ${lines === 1 ? "line" : "lines"} below ↓`
        : "Show the end of the arguments ↑";
      const content = !signer.ready ? "Approving needs a key."
        : !endWasVisible ? more
          : accepted ? "" : "Reveal the hidden values, or tick the box above.";
      if (hint.firstChild !== content) hint.replaceChildren(content);
      hint.hidden = content === "";
    }

    // Enables approval once the end of the arguments has been visible above the bar.
    function observeEnd() {
      endObserver?.abort();
      if (endWasVisible) return;
      endObserver = new AbortController();
      const { signal } = endObserver;
      const observer = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        endWasVisible = true;
        endObserver.abort();
        update();
      }, { rootMargin: `0px 0px -${Math.ceil(findBar().getBoundingClientRect().height)}px 0px` });
      observer.observe(document.getElementById("end"));
      signal.addEventListener("abort", () => observer.disconnect());
      addEventListener("scroll", update, { signal, passive: true });
      addEventListener("resize", observeEnd, { signal });
    }

    async function reveal() {
      try {
        const revealed = await requestAsOperator(signer, `${id}/revealed`);
        if (view.state === "pending") await updateView(revealed, true);
      } catch (error) {
        showMessage(error.message, true);
      }
    }

    async function decide(decision) {
      busy = true;
      update();
      showMessage("");
      try {
        const options = hasMasked && decision === "approve" ? { accept_masked: true } : {};
        const response = await signer.use(view, decision, reason.value.trim(), (proof) => {
          showMessage(decision === "approve" ? "Approved. The call is running…" : "Rejecting…");
          return request(id, { proof, ...options });
        });
        showMessage("");
        result = response.result_text || null;
        await updateView(response, true);
      } catch (error) {
        // Another operator decided meanwhile: the page already shows the outcome.
        if (view.state !== "pending") return;
        busy = false;
        showMessage(error.message, true);
        update();
        if (["already_decided", "confirmation_expired"].includes(error.code)) {
          await updateView(await request(id));
        }
      }
    }

    return {
      reveal: signer.ready ? reveal : null,
      card: make("section", { class: "card" }, make("h2", {}, "Decision"),
        hasMasked && !view.revealed ? make("label", { class: "check", for: "accept" }, accept,
          "Approve without seeing the hidden values") : null,
        make("label", { for: "reason" }, "Reason ",
          make("span", { class: "soft" }, "(logged; sent to the caller if you reject)")),
        reason, signer.field, createKeyForm(async () => updateView(view, true))),
      start() {
        showActions(hint, rejectButton, approveButton);
        update();
        observeEnd();
      },
    };
  }

  // -- the outcome

  function createOutcome() {
    if (["approved", "dispatching"].includes(view.state)) {
      return make("section", { class: "state blue", id: "state" }, createIcon("turning"),
        make("div", {}, make("h1", {}, "Approved: running"),
          make("p", {}, "The call is being executed.")));
    }
    const failed = view.state === "done" && view.outcome && view.outcome !== "ok";
    const [colour, icon, title] = failed ? ["amber", "alarm", "Approved, but the call failed"]
      : STATES[view.state] || STATES.lost;
    const note = view.note || NOTES[view.state];
    return make("section", { class: `state ${colour}`, id: "state" }, createIcon(icon),
      make("div", {}, make("h1", {}, title),
        make("p", {}, view.by ? escapeText(`by ${view.by}`) : "",
          view.by && view.decided ? " · " : "", view.decided ? formatTime(view.decided) : ""),
        note ? make("p", { class: "words" }, escapeText(note)) : null,
        failed ? make("p", {}, "Outcome: ", make("code", {}, escapeText(view.outcome))) : null));
  }

  // Shows a new view. If only the time has changed, the page is not rebuilt, unless `rebuild` is set.
  async function updateView(newView, rebuild = false) {
    const unchanged = view !== null && view.state === newView.state && !rebuild;
    // Revealed values remain visible while the call is pending.
    view = unchanged && view.revealed
      ? { ...view, seconds_left: newView.seconds_left, now: newView.now } : newView;
    view.clockOffset = clockOffset(view);
    startCountdown();
    if (unchanged) return;
    if (view.state === "pending") {
      const decision = await createDecision();
      const [colour] = findEffect(view);
      setBadge(true);
      showPage(`Approve ${view.tool}?`, make("h1", { class: "eyebrow" }, "Approve this call?"),
        createTitle(),
        make("div", { class: `effect ${colour}`, id: "effect" }, createEffectMark(view)),
        createRequestCard(), createValueCards(decision.reveal), decision.card);
      decision.start();
      return;
    }
    endObserver?.abort();
    setBadge(false);
    showActions();
    const resultCard = result === null ? null : make("section", { class: "card" },
      make("h2", {}, "Result"), make("div", { id: "result" }, renderResult(result)));
    showPage(view.tool, createOutcome(), createTitle(), resultCard, createRequestCard(),
      createValueCards(null), make("p", {}, make("a", { href: "./" }, "Pending calls")));
    document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
    if (events !== null && !["approved", "dispatching"].includes(view.state)) events.close();
  }

  await updateView(await request(id));
  if (["pending", "approved", "dispatching"].includes(view.state)) {
    events = new EventSource(`${id}/events`);
    events.addEventListener("approval", (event) => updateView(JSON.parse(event.data)));
  }
}
