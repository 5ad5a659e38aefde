// Codes that agents wait for, and agents that are blocked. Shown to an operator who signed in.

import { ask, make, span, visible } from "./shown.js";

const TIERS = { verify: "wants to go on with", danger_zone: "is blocked after" };

// A section for the list of what waits. `again`: shows it anew.
export async function codes(session, again, say) {
  const headers = { "Interlock-Session": session };
  let told;
  try {
    told = await ask("codes", undefined, headers);
  } catch (error) {
    // A node without the safety loop has no such path.
    if (["not_found", "unknown_approval"].includes(error.word)) return null;
    throw error;
  }
  const another = (sent) => async () => {
    try {
      await ask("codes", sent, headers);
      await again();
    } catch (error) {
      say(error.message, true);
    }
  };

  function challenge(one) {
    const who = one.above ? `${one.above}, through ${one.caller}` : one.caller;
    return make("section", { class: "card code", id: `code-${one.id}` },
      make("p", {}, make("b", {}, visible(who)), ` ${TIERS[one.tier] || "waits:"} `,
        make("q", {}, visible(one.hint))),
      one.code ? make("p", { class: "tool" }, one.code)
        : make("p", { class: "soft" }, "Its code is not known any more."),
      make("p", { class: "soft small" }, `${span(one.seconds_left)} left · `,
        "Tell the code only to whoever may go on. It is good once. ",
        one.approval ? make("a", { href: one.approval }, "Decide here instead") : ""),
      make("button", { type: "button", onclick: another({ renew: one.id }) }, "Make a new code"));
  }

  function block(one) {
    return make("section", { class: "card" },
      make("p", {}, make("b", {}, visible(one.caller)), " is blocked: ", visible(one.reason)),
      make("button", { type: "button", onclick: another({ blocked: one.caller }) },
        "Ask for a code"));
  }

  const open = new Set(told.challenges.map((one) => one.id));
  const lone = told.blocks.filter((one) => !open.has(one.challenge));
  if (told.challenges.length + lone.length === 0) return null;
  return [make("h2", { id: "codes" }, "Codes for agents"), told.challenges.map(challenge),
    lone.map(block)];
}
