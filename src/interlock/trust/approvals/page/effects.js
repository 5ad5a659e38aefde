// The effect of a call, as a coloured mark with an icon and a title, and the rule that requires approval.

import { createIcon, make } from "./elements.js";

const EFFECTS = {
  irreversible: ["red", "alarm", "Cannot be undone"],
  mutating: ["amber", "change", "Changes data"],
  additive: ["blue", "plus", "Adds data"],
  read_only: ["green", "eye", "Only reads"],
};

export const findEffect = (view) => EFFECTS[view.effect] || EFFECTS.mutating;

// Returns the rule that requires approval, and its reason. The reason of a built-in rule is shortened:
// the mark of the effect shows the rest.
export function describeRule(view) {
  const rule = view.rule || "default";
  let reason = view.reason || "";
  if (rule.startsWith("default") && view.effect === "irreversible") {
    reason = reason.replace(/[^.]*cannot be undone\.\s*/i, "")
      || "Irreversible calls need approval.";
  }
  return [rule, reason];
}

export function createEffectMark(view) {
  const [colour, icon, title] = findEffect(view);
  return make("span", { class: `chip ${colour}` }, createIcon(icon), title);
}
