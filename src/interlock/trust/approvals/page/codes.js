// Codes for agents that are stopped or blocked. The page shows them to an operator who signed in.

import { escapeText, formatDuration, make, request } from "./elements.js";

const TIERS = { verify: "asks to continue with", danger_zone: "is blocked after" };

// Returns the section for the list of pending calls: its elements, and a `key` that changes with
// them. `reload` reloads the list.
export async function loadCodes(session, reload, showMessage) {
  const headers = { "Interlock-Session": session };
  let data;
  try {
    data = await request("codes", undefined, headers);
  } catch (error) {
    // A node without the safety loop has no such path.
    if (["not_found", "unknown_approval"].includes(error.code)) return { key: "", elements: [] };
    throw error;
  }
  const createCode = (body) => async () => {
    try {
      await request("codes", body, headers);
      await reload();
    } catch (error) {
      showMessage(error.message, true);
    }
  };

  function challengeCard(challenge) {
    const caller = challenge.above ? `${challenge.above}, through ${challenge.caller}`
      : challenge.caller;
    return make("section", { class: "card code", id: `code-${challenge.id}` },
      make("p", {}, make("b", {}, escapeText(caller)),
        ` ${TIERS[challenge.tier] || "is stopped at"} `, make("q", {}, escapeText(challenge.hint))),
      challenge.code ? make("p", { class: "tool" }, challenge.code)
        : make("p", { class: "soft" }, "The code is no longer available."),
      make("p", { class: "soft small" }, `${formatDuration(challenge.seconds_left)} left · `,
        "Give the code only to an agent that may continue. It works once. ",
        challenge.approval ? make("a", { href: challenge.approval }, "Decide here") : ""),
      make("button", { type: "button", onclick: createCode({ renew: challenge.id }) }, "New code"));
  }

  function blockCard(block) {
    return make("section", { class: "card" },
      make("p", {}, make("b", {}, escapeText(block.caller)), " is blocked: ",
        escapeText(block.reason)),
      make("button", { type: "button", onclick: createCode({ blocked: block.caller }) },
        "Create a code"));
  }

  const challengeIds = new Set(data.challenges.map((challenge) => challenge.id));
  const blocks = data.blocks.filter((block) => !challengeIds.has(block.challenge));
  const entries = [...data.challenges, ...blocks];
  return {
    key: entries.map((entry) => [entry.id, entry.code, entry.caller, entry.reason].join())
      .join("\n"),
    elements: entries.length === 0 ? [] : [make("h2", { id: "codes" }, "Codes for agents"),
      data.challenges.map(challengeCard), blocks.map(blockCard)],
  };
}
