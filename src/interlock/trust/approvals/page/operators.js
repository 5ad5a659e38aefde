// Pending enrolments: an operator who signed in admits or rejects them.

import { late } from "./signing.js";
import { ask, make, moment, say, visible } from "./shown.js";

const KINDS = { passkey: "Passkey", key: "Key" };

// The section for the list of pending calls: `shown`, and by what it is known, `key`. `again` reloads
// the list.
export async function operators(session, signs, again) {
  const headers = { "Interlock-Session": session };
  const told = await ask("operators", undefined, headers);
  // A recovery takes effect by itself: first.
  const pending = [...told.pending].sort((a, b) => Number(b.recovery) - Number(a.recovery));

  const attempt = (work) => async (event) => {
    const { target } = event;
    target.disabled = true;
    try {
      await work();
      say("");
      again();
    } catch (error) {
      say(error.message, true);
      target.disabled = false;
    }
  };
  // What is signed names the last change of the operators: it is fetched again, and must still be
  // about what is shown.
  const admit = (one) => attempt(async () => {
    const now = await ask("operators", undefined, headers);
    const same = now.pending.find(({ id, name, key }) =>
      id === one.id && name === one.name && key === one.key);
    if (!same) throw new Error("This enrolment has changed. Refresh, and check it again.");
    const { aud, jti, args_sha256, entry } = same;
    await signs.use({ aud, id: jti, args_sha256, late: late(now) }, "approve", "",
      (proof) => ask("operators", { id: one.id, entry, proof }, headers));
  });
  const refuse = (one) => attempt(() => ask("operators", { id: one.id, refuse: true }, headers));

  const words = (one) => (one.recovery
    ? ` asks to become an operator without confirmation. This takes effect on ${moment(one.ends)} `
      + "unless an operator rejects it."
    : " asks to become an operator, who can approve calls.");
  const card = (one) => make("section", { id: `enrolment-${one.id}`,
    class: one.recovery ? "card enrolment alarm" : "card enrolment" },
    make("p", {}, make("b", {}, visible(one.name)), words(one)),
    make("p", { class: "soft small" },
      KINDS[one.kind] || one.kind, " ", make("code", {}, visible(one.key)),
      one.tools?.length ? visible(` · only for ${one.tools.join(", ")}`) : ""),
    make("div", { class: "pair" },
      make("button", { type: "button", class: "refuse", onclick: refuse(one) }, "Reject"),
      make("button", { type: "button", class: "admit", onclick: admit(one) }, "Confirm")));
  return {
    key: pending.map((one) => [one.id, one.name, one.key].join()).join("\n"),
    shown: pending.length === 0 ? [] : [make("h2", { id: "enrolments" }, "Pending enrolments"),
      pending.map(card)],
  };
}
