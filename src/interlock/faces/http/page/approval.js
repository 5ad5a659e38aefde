// One approval: what would happen, and the decision about it.

import { signer, setup } from "./signing.js";
import { ask, drawing, json, make, moment, pairs, say, show, span, visible } from "./shown.js";

const EFFECTS = {
  irreversible: ["red", "alarm", "This cannot be undone",
    "What this tool does cannot be taken back afterwards."],
  mutating: ["amber", "change", "This changes something",
    "The tool changes or replaces what is there."],
  additive: ["blue", "plus", "This adds something", "The tool adds and changes nothing that is there."],
  read_only: ["green", "eye", "This only reads", "The tool looks and changes nothing."],
};
const KINDS = { local: "a program of this user on the node's machine", token: "by its token",
  jwt: "signed in", introspection: "signed in", certificate: "by its certificate",
  parent: "the node above" };
const ENDS = {
  done: ["green", "yes", "Approved, and done"],
  refused: ["red", "no", "Refused"],
  passed_on: ["green", "yes", "Passed on to the node that holds it"],
  expired: ["blue", "clock", "Too late"],
  void: ["blue", "no", "No longer valid"],
  lost: ["red", "alarm", "It is not known what became of it"],
};
const EXPLAINED = {
  expired: "Nobody decided in time. Nothing was called; it can be asked again.",
  void: "The tool, its arguments or the policy changed since it was asked. Nothing was called.",
  lost: "The node stopped while the call was under way. It is not made again by itself.",
};

export async function approval(id) {
  let view = null;
  let ticking = 0;
  let events = null;
  let result = null;

  function countdown() {
    const [left, bar, fill] = ["left", "bar", "bar-fill"].map((one) => document.getElementById(one));
    clearInterval(ticking);
    const over = view.state !== "pending";
    left.hidden = bar.hidden = over;
    if (over) return;
    const ends = performance.now() + view.seconds_left * 1000;
    const tick = () => {
      const rest = (ends - performance.now()) / 1000;
      left.textContent = rest > 0 ? `${span(rest)} left` : "expired";
      left.classList.toggle("soon", rest < 60);
      fill.style.transform = `scaleX(${Math.max(0, Math.min(1, rest / view.seconds_whole))})`;
      if (rest <= 0) clearInterval(ticking);
    };
    tick();
    ticking = setInterval(tick, 500);
  }

  function what() {
    const [colour, drawn, title, words] = EFFECTS[view.effect] || EFFECTS.mutating;
    const waits = view.state === "pending";
    const made = ["approved", "dispatching", "done", "lost"].includes(view.state);
    const caller = view.caller.above ? `${view.caller.above}, through ${view.caller.name}`
      : view.caller.name;
    return [
      make("section", { class: `effect ${colour}`, id: "effect" }, drawing(drawn),
        make("div", {}, make("b", {}, title), words)),
      make("section", { class: "card" }, make("h2", {}, waits ? "What will be called"
          : made ? "What was called" : "What was asked for"),
        make("p", { class: "tool", id: "tool" }, visible(view.tool)),
        make("p", { class: "words" }, visible(view.description || "The tool says nothing of itself."))),
      view.arguments_text ? make("section", { class: "card" },
        make("h2", {}, "With exactly these arguments"), argumentsShown()) : null,
      view.meta_text ? make("section", { class: "card" },
        make("h2", {}, "And with this beside them"), besideShown()) : null,
      make("section", { class: "card" }, pairs([
        ["Asked by", `${caller} (${KINDS[view.caller.kind] || view.caller.kind})`],
        ["Held by", view.at ? `the node ${view.at} below, which says all of this itself` : ""],
        ["Proposed", view.proposal ? `in the topic ${view.proposal.topic} by ${view.proposal.by}, `
          + "where everybody sees the outcome" : ""],
        ["On", view.server],
        ["Way there", view.route.length > 2 ? view.route.join(" › ") : ""],
        ["Why it waits", view.reason || (view.rule ? `Rule ${view.rule}` : "The policy asks for it.")],
        ["Asked at", moment(view.created)],
      ]), make("details", {}, make("summary", {}, "For the record"), pairs([
        ["Approval", view.id, "code"], ["Digest", view.args_sha256, "code"],
        ["Tool contract", view.contract, "code"], ["Policy", view.policy, "code"],
        ["Rule", view.rule], ["Node", view.aud, "code"],
        ["Needs", view.action === "verify" ? "the key or passkey of a person" : "one proof"],
      ]))),
    ];
  }

  function argumentsShown() {
    const shown = json(view.arguments_text, view.mask);
    shown.id = "arguments";
    shown.setAttribute("aria-label", "Arguments");
    return shown;
  }

  function besideShown() {
    const shown = json(view.meta_text, view.mask);
    shown.id = "beside";
    shown.setAttribute("aria-label", "What is sent beside the arguments");
    return shown;
  }

  async function decision() {
    const signs = await signer();
    const reason = make("textarea", { id: "reason", rows: "2", maxlength: "500" });
    const buttons = ["refuse", "approve"].map((one) => make("button", {
      type: "button", id: one, class: one === "approve" ? "go" : "stop", disabled: !signs.ready,
      onclick: () => decide(one),
    }, one === "approve" ? "Approve and run" : "Refuse"));

    async function decide(word) {
      buttons.forEach((one) => { one.disabled = true; });
      say("");
      try {
        const proof = await signs.proof(view, word, reason.value.trim());
        say(word === "approve" ? "Approved. The call is under way…" : "Refusing…");
        const told = await ask(id, { proof });
        say("");
        result = told.result_text || null;
        await shown(told, true);
      } catch (error) {
        say(error.message, true);
        buttons.forEach((one) => { one.disabled = false; });
        if (["already_decided", "confirmation_expired"].includes(error.word)) {
          await shown(await ask(id));
        }
      }
    }

    return [
      make("section", { class: "card" }, make("h2", {}, "Your decision"),
        make("label", { for: "reason" }, "Reason ",
          make("span", { class: "soft" }, "kept on record; a refusal's is told to whoever asked")),
        reason, signs.ready ? signs.field
          : make("p", {}, "This browser cannot sign yet: bring a key, or enrol one.")),
      setup(async () => shown(view, true)),
      make("div", { class: "actions" }, buttons),
    ];
  }

  function over() {
    if (["approved", "dispatching"].includes(view.state)) {
      return make("section", { class: "card done blue", id: "state" }, drawing("turning"),
        make("h1", {}, "Approved, under way"), make("p", { class: "soft" }, "The call is being made."));
    }
    const failed = view.state === "done" && view.outcome && view.outcome !== "ok";
    const [colour, drawn, title] = failed ? ["red", "alarm", "Approved, but the call failed"]
      : ENDS[view.state] || ENDS.lost;
    return make("section", { class: `card done ${colour}`, id: "state" }, drawing(drawn),
      make("h1", {}, title),
      make("p", { class: "soft" }, view.by ? visible(`by ${view.by}`) : "",
        view.decided ? ` · ${moment(view.decided)}` : ""),
      view.note || EXPLAINED[view.state]
        ? make("p", { class: "words" }, visible(view.note || EXPLAINED[view.state])) : null,
      failed ? make("p", {}, "Outcome: ", make("code", {}, visible(view.outcome))) : null);
  }

  async function shown(told, anew = false) {
    const same = view !== null && view.state === told.state && !anew;
    view = told;
    view.late = Math.round(view.now - Date.now() / 1000);
    countdown();
    if (same) return;
    const title = make("h1", {}, "Let this call through?");
    if (view.state === "pending") {
      show(`Approve ${view.tool}?`, title, what(), await decision());
    } else {
      const [, ...rest] = what();
      const came = result === null ? null : make("section", { class: "card" },
        make("h2", {}, "What came back"), json(result, null));
      if (came) came.querySelector("pre").id = "result";
      show(view.tool, over(), came, rest);
      document.getElementById("main").focus({ preventScroll: true });
      scrollTo(0, 0);
      if (events !== null && !["approved", "dispatching"].includes(view.state)) events.close();
    }
  }

  await shown(await ask(id));
  if (["pending", "approved", "dispatching"].includes(view.state)) {
    events = new EventSource(`${id}/events`);
    events.addEventListener("approval", (event) => shown(JSON.parse(event.data)));
  }
}
