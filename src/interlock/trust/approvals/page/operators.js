// Pending enrolments: an operator who signed in confirms or rejects them.

import { clockOffset } from "./signing.js";
import { escapeText, formatTime, make, request, showMessage } from "./elements.js";

const KINDS = { passkey: "Passkey", key: "Key" };

// Returns the section for the list of pending calls: its elements, and a `key` that changes with
// them. `reload` reloads the list.
export async function loadEnrolments(session, signer, reload) {
  const headers = { "Interlock-Session": session };
  const data = await request("operators", undefined, headers);
  // Recoveries are first, because they take effect without confirmation.
  const pending = [...data.pending].sort((a, b) => Number(b.recovery) - Number(a.recovery));

  const runAction = (action) => async (event) => {
    const { target } = event;
    target.disabled = true;
    try {
      await action();
      showMessage("");
      reload();
    } catch (error) {
      showMessage(error.message, true);
      target.disabled = false;
    }
  };
  // The signature covers the last change of the operators. It is loaded again, and the enrolment must
  // still be the one on the page.
  const confirm = (enrolment) => runAction(async () => {
    const current = await request("operators", undefined, headers);
    const match = current.pending.find(({ id, name, key }) =>
      id === enrolment.id && name === enrolment.name && key === enrolment.key);
    if (!match) throw new Error("This enrolment has changed. Refresh, and check it again.");
    const { aud, jti, args_sha256, entry } = match;
    await signer.use({ aud, id: jti, args_sha256, clockOffset: clockOffset(current) },
      "approve", "", (proof) => request("operators", { id: enrolment.id, entry, proof }, headers));
  });
  const reject = (enrolment) => runAction(() =>
    request("operators", { id: enrolment.id, refuse: true }, headers));

  const describe = (enrolment) => (enrolment.recovery
    ? " asks to become an operator without confirmation. This takes effect on "
      + `${formatTime(enrolment.ends)} unless an operator rejects it.`
    : " asks to become an operator, who can approve calls.");
  const createCard = (enrolment) => make("section", { id: `enrolment-${enrolment.id}`,
    class: enrolment.recovery ? "card enrolment alarm" : "card enrolment" },
    make("p", {}, make("b", {}, escapeText(enrolment.name)), describe(enrolment)),
    make("p", { class: "soft small" },
      KINDS[enrolment.kind] || enrolment.kind, " ", make("code", {}, escapeText(enrolment.key)),
      enrolment.tools?.length ? escapeText(` · only for ${enrolment.tools.join(", ")}`) : ""),
    make("div", { class: "pair" },
      make("button", { type: "button", class: "refuse", onclick: reject(enrolment) }, "Reject"),
      make("button", { type: "button", class: "admit", onclick: confirm(enrolment) }, "Confirm")));
  return {
    key: pending.map((enrolment) => [enrolment.id, enrolment.name, enrolment.key].join())
      .join("\n"),
    elements: pending.length === 0 ? [] : [make("h2", { id: "enrolments" }, "Pending enrolments"),
      pending.map(createCard)],
  };
}
