// All that waits, for an operator who proves to be one.

import { codes } from "./codes.js";
import { signer, setup } from "./signing.js";
import { ask, make, say, show, span, visible } from "./shown.js";

export async function inbox() {
  const signs = await signer();
  const button = make("button", { class: "go wide", id: "look", type: "button",
    disabled: !signs.ready, onclick: look }, "Show what waits");

  async function look() {
    button.disabled = true;
    try {
      const question = await ask("session");
      const view = { ...question, id: "inbox", args_sha256: question.nonce,
        late: Math.round(question.now - Date.now() / 1000) };
      const { session } = await ask("session", { nonce: question.nonce,
        proof: await signs.proof(view, "approve", "") });
      say("");
      await list(session);
    } catch (error) {
      say(error.message, true);
      button.disabled = false;
    }
  }

  async function list(session) {
    const { approvals } = await ask("./", undefined, { "Interlock-Session": session });
    const shown = await codes(session, () => list(session), say);
    show("Approvals", make("h1", { id: "count" }, approvals.length === 0 ? "Nothing waits"
      : approvals.length === 1 ? "One call waits" : `${approvals.length} calls wait`),
      approvals.map((one) => make("a", { class: "card item", href: one.id },
        make("p", { class: "tool" }, visible(one.tool)),
        make("p", { class: "soft small" }, visible(`asked by ${one.caller.name}`), " · ",
          one.at ? visible(`held by the node ${one.at} below · `) : "",
          `${span(one.seconds_left)} left`),
        make("p", { class: "brief small" }, visible(one.arguments_text.replace(/\s+/g, " "))))),
      shown,
      make("button", { class: "wide", type: "button", onclick: () => list(session).catch((error) =>
        say(error.message, true)) }, "Look again"));
  }

  show("Approvals", make("h1", {}, "Calls that wait for you"),
    make("section", { class: "card" },
      make("p", {}, "What waits is shown to operators only: sign to look."),
      signs.ready ? signs.field : make("p", {}, "This browser cannot sign yet."), button),
    setup(() => inbox()),
    make("p", { class: "soft small" }, "On the node itself: ",
      make("code", {}, "interlock approvals"), "."));
}
