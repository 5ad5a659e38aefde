// One call: what it does, and the decision about it.

import { chip, effectOf, held } from "./effects.js";
import { answered, fold, parse, values } from "./values.js";
import { askAsOperator, late, setup, signer } from "./signing.js";
import { actions, ask, badge, drawing, make, moment, pairs, say, show, span, visible }
  from "./shown.js";

const KINDS = { local: "program on the node’s machine", token: "access token",
  jwt: "signed in", introspection: "signed in", certificate: "client certificate",
  parent: "parent node" };
const ENDS = {
  done: ["green", "yes", "Approved and done"],
  refused: ["grey", "no", "Rejected"],
  passed_on: ["green", "yes", "Approved: passed to the node that holds it"],
  expired: ["grey", "clock", "Expired"],
  void: ["grey", "no", "No longer valid"],
  lost: ["amber", "alarm", "Outcome unknown"],
};
const EXPLAINED = {
  expired: "Nobody decided in time. The call was not executed. The caller can request it again.",
  void: "The tool, its arguments or the policy changed after the request. "
    + "The call was not executed.",
  lost: "The node stopped during the call. It does not retry the call.",
};
const LINE = 22;

export async function approval(id) {
  let view = null;
  let ticking = 0;
  let events = null;
  let result = null;
  let seen = false;
  let watch = null;
  let typed = "";

  function countdown() {
    const left = document.getElementById("left");
    clearInterval(ticking);
    left.hidden = view.state !== "pending";
    if (left.hidden) return;
    const ends = performance.now() + view.seconds_left * 1000;
    const tick = () => {
      const rest = (ends - performance.now()) / 1000;
      left.textContent = rest > 0 ? `${span(rest)} left` : "expired";
      left.classList.toggle("soon", rest < 60);
      if (rest <= 0) clearInterval(ticking);
    };
    tick();
    ticking = setInterval(tick, 500);
  }

  // -- what it is

  function subject() {
    return [
      make("p", { class: "tool", id: "tool" }, visible(view.tool)),
      view.description ? make("p", { class: "words quote" }, visible(view.description)) : null,
    ];
  }

  function request() {
    const [rule, reason] = held(view);
    const caller = view.caller.above ? `${view.caller.above}, through ${view.caller.name}`
      : view.caller.name;
    return make("section", { class: "card", id: "request" }, make("h2", {}, "Request"), pairs([
      ["Caller", `${caller} (${KINDS[view.caller.kind] || view.caller.kind})`],
      ["Route", view.route.length > 2 ? view.route.join(" › ") : ""],
      ["Node", view.at ? `${view.at}, a node below this one, which reports all of this` : ""],
      ["Proposal", view.proposal ? `by ${view.proposal.by} in topic ${view.proposal.topic}; `
        + "everybody in the topic sees the outcome" : ""],
      ["Rule", make("span", { id: "rule" }, make("code", {}, visible(rule)),
        reason ? make("span", { class: "why" }, visible(reason)) : null)],
    ]), make("details", {}, make("summary", {}, "Technical details"), pairs([
      ["Requested", moment(view.created)], ["Server", view.server],
      ["Approval id", view.id, "code"], ["Digest", view.args_sha256, "code"],
      ["Tool contract", view.contract, "code"], ["Policy version", view.policy, "code"],
      ["Node id", view.aud, "code"],
      ["Proof needed", view.action === "verify" ? "key or passkey of a person" : "any valid proof"],
    ])));
  }

  function given(reveal) {
    const masked = new Set(view.revealed ? [] : view.masked || []);
    const end = make("div", { class: "end", id: "end" });
    const card = (id, title, text, at, last) => (text ? make("section", { class: "card" },
      make("h2", {}, title), make("div", { id }, values(parse(text), at, masked)),
      last ? end : null, fold("Show as JSON", text)) : null);
    const shown = [
      masked.size && reveal ? make("div", { class: "note", id: "masked" },
        make("p", {}, drawing("lock"), masked.size === 1 ? "1 value is hidden: it is a secret."
          : `${masked.size} values are hidden: they are secrets.`),
        make("button", { type: "button", id: "reveal", onclick: reveal }, "Reveal")) : null,
      card("arguments", "Arguments", view.arguments_text, "/arguments", !view.meta_text),
      card("beside", "Metadata sent with the call", view.meta_text, "/meta", true),
    ];
    return end.parentNode ? shown : [...shown, end];
  }

  // -- the decision

  async function decision() {
    const signs = await signer();
    const hidden = (view.masked || []).length > 0;
    const reason = make("textarea", { id: "reason", rows: "2", maxlength: "500",
      oninput: () => { typed = reason.value; } });
    reason.value = typed;
    const accept = make("input", { type: "checkbox", id: "accept", onchange: update });
    const refuse = make("button", { type: "button", id: "refuse", disabled: !signs.ready,
      onclick: () => decide("refuse") }, "Reject");
    const approve = make("button", { type: "button", id: "approve", disabled: true,
      class: view.effect === "irreversible" ? "go grave" : "go", "aria-describedby": "hint",
      onclick: () => decide("approve") }, "Approve");
    const more = make("button", { type: "button", class: "more", id: "more", onclick: page });
    const hint = make("div", { class: "hint", id: "hint" });
    let busy = false;

    const bar = () => document.getElementById("bar");
    const below = () => document.getElementById("end").getBoundingClientRect().top
      - bar().getBoundingClientRect().top;

    // One screen further, as a pager does.
    function page() {
      const screen = bar().getBoundingClientRect().top - 2 * LINE;
      scrollBy({ top: below() > 0 ? Math.min(screen, below() + 2 * LINE) : below() - 2 * LINE });
    }

    function update() {
      const accepted = !hidden || view.revealed || accept.checked;
      approve.disabled = busy || !signs.ready || !seen || !accepted;
      refuse.disabled = busy || !signs.ready;
      const left = below();
      const lines = Math.ceil(left / LINE);
      more.textContent = left > 0 ? `${lines} more ${lines === 1 ? "line" : "lines"} below ↓`
        : "Show the end of the arguments ↑";
      const words = !signs.ready ? "Approving needs a key."
        : !seen ? more : accepted ? "" : "Reveal the hidden values, or tick the box above.";
      if (hint.firstChild !== words) hint.replaceChildren(words);
      hint.hidden = words === "";
    }

    function watchEnd() {
      watch?.abort();
      if (seen) return;
      watch = new AbortController();
      const { signal } = watch;
      // Covered by the bar is not seen.
      const observer = new IntersectionObserver((found) => {
        if (!found.some((one) => one.isIntersecting)) return;
        seen = true;
        watch.abort();
        update();
      }, { rootMargin: `0px 0px -${Math.ceil(bar().getBoundingClientRect().height)}px 0px` });
      observer.observe(document.getElementById("end"));
      signal.addEventListener("abort", () => observer.disconnect());
      addEventListener("scroll", update, { signal, passive: true });
      addEventListener("resize", watchEnd, { signal });
    }

    async function reveal() {
      try {
        const told = await askAsOperator(signs, `${id}/revealed`);
        if (view.state === "pending") await shown(told, true);
      } catch (error) {
        say(error.message, true);
      }
    }

    async function decide(word) {
      busy = true;
      update();
      say("");
      try {
        const sent = hidden && word === "approve" ? { accept_masked: true } : {};
        const told = await signs.use(view, word, reason.value.trim(), (proof) => {
          say(word === "approve" ? "Approved. The call is running…" : "Rejecting…");
          return ask(id, { proof, ...sent });
        });
        say("");
        result = told.result_text || null;
        await shown(told, true);
      } catch (error) {
        // Somebody else decided meanwhile: the page shows that already.
        if (view.state !== "pending") return;
        busy = false;
        say(error.message, true);
        update();
        if (["already_decided", "confirmation_expired"].includes(error.word)) {
          await shown(await ask(id));
        }
      }
    }

    return {
      reveal: signs.ready ? reveal : null,
      card: make("section", { class: "card" }, make("h2", {}, "Decision"),
        hidden && !view.revealed ? make("label", { class: "check", for: "accept" }, accept,
          "Approve without seeing the hidden values") : null,
        make("label", { for: "reason" }, "Reason ",
          make("span", { class: "soft" }, "(logged; sent to the caller if you reject)")),
        reason, signs.field, setup(async () => shown(view, true))),
      start() {
        actions(hint, refuse, approve);
        update();
        watchEnd();
      },
    };
  }

  // -- what became of it

  function over() {
    if (["approved", "dispatching"].includes(view.state)) {
      return make("section", { class: "state blue", id: "state" }, drawing("turning"),
        make("div", {}, make("h1", {}, "Approved: running"),
          make("p", {}, "The call is being executed.")));
    }
    const failed = view.state === "done" && view.outcome && view.outcome !== "ok";
    const [colour, drawn, title] = failed ? ["amber", "alarm", "Approved, but the call failed"]
      : ENDS[view.state] || ENDS.lost;
    const words = view.note || EXPLAINED[view.state];
    return make("section", { class: `state ${colour}`, id: "state" }, drawing(drawn),
      make("div", {}, make("h1", {}, title),
        make("p", {}, view.by ? visible(`by ${view.by}`) : "",
          view.by && view.decided ? " · " : "", view.decided ? moment(view.decided) : ""),
        words ? make("p", { class: "words" }, visible(words)) : null,
        failed ? make("p", {}, "Outcome: ", make("code", {}, visible(view.outcome))) : null));
  }

  async function shown(told, anew = false) {
    const same = view !== null && view.state === told.state && !anew;
    // What was revealed stays on the screen while the call is pending.
    view = same && view.revealed ? { ...view, seconds_left: told.seconds_left, now: told.now } : told;
    view.late = late(view);
    countdown();
    if (same) return;
    if (view.state === "pending") {
      const decides = await decision();
      const [colour] = effectOf(view);
      badge(true);
      show(`Approve ${view.tool}?`, make("h1", { class: "eyebrow" }, "Approve this call?"),
        subject(), make("div", { class: `effect ${colour}`, id: "effect" }, chip(view)),
        request(), given(decides.reveal), decides.card);
      decides.start();
      return;
    }
    watch?.abort();
    badge(false);
    actions();
    const came = result === null ? null : make("section", { class: "card" },
      make("h2", {}, "Result"), make("div", { id: "result" }, answered(result)));
    show(view.tool, over(), subject(), came, request(), given(null),
      make("p", {}, make("a", { href: "./" }, "Pending calls")));
    document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
    if (events !== null && !["approved", "dispatching"].includes(view.state)) events.close();
  }

  await shown(await ask(id));
  if (["pending", "approved", "dispatching"].includes(view.state)) {
    events = new EventSource(`${id}/events`);
    events.addEventListener("approval", (event) => shown(JSON.parse(event.data)));
  }
}
