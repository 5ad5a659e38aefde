// Codes for agents that are stopped or blocked. Shown to an operator who signed in.

import { ask, make, span, visible } from "./shown.js";

const TIERS = { verify: "asks to continue with", danger_zone: "is blocked after" };

// The section for the list of pending calls: `shown`, and by what it is known, `key`. `again` reloads
// the list.
export async function codes(session, again, say) {
  const headers = { "Interlock-Session": session };
  let told;
  try {
    told = await ask("codes", undefined, headers);
  } catch (error) {
    // A node without the safety loop has no such path.
    if (["not_found", "unknown_approval"].includes(error.word)) return { key: "", shown: [] };
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
      make("p", {}, make("b", {}, visible(who)), ` ${TIERS[one.tier] || "is stopped at"} `,
        make("q", {}, visible(one.hint))),
      one.code ? make("p", { class: "tool" }, one.code)
        : make("p", { class: "soft" }, "The code is no longer available."),
      make("p", { class: "soft small" }, `${span(one.seconds_left)} left · `,
        "Give the code only to an agent that may continue. It works once. ",
        one.approval ? make("a", { href: one.approval }, "Decide here") : ""),
      make("button", { type: "button", onclick: another({ renew: one.id }) }, "New code"));
  }

  function block(one) {
    return make("section", { class: "card" },
      make("p", {}, make("b", {}, visible(one.caller)), " is blocked: ", visible(one.reason)),
      make("button", { type: "button", onclick: another({ blocked: one.caller }) },
        "Create a code"));
  }

  const open = new Set(told.challenges.map((one) => one.id));
  const lone = told.blocks.filter((one) => !open.has(one.challenge));
  const all = [...told.challenges, ...lone];
  return {
    key: all.map((one) => [one.id, one.code, one.caller, one.reason].join()).join("\n"),
    shown: all.length === 0 ? [] : [make("h2", { id: "codes" }, "Codes for agents"),
      told.challenges.map(challenge), lone.map(block)],
  };
}
