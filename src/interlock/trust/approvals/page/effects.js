// What a call does, in one mark: colour, drawing, title, and why it is believed.

import { drawing, make } from "./shown.js";

const EFFECTS = {
  irreversible: ["red", "alarm", "Cannot be undone"],
  mutating: ["amber", "change", "Changes data"],
  additive: ["blue", "plus", "Adds data"],
  read_only: ["green", "eye", "Only reads"],
};

export const effectOf = (view) => EFFECTS[view.effect] || EFFECTS.mutating;

// The rule that held a call, and its reason. Of a built-in rule's reason the sentence that only
// repeats the effect is left out: the mark above says it.
export function held(view) {
  const rule = view.rule || "default";
  let reason = view.reason || "";
  if (rule.startsWith("default") && view.effect === "irreversible") {
    reason = reason.replace(/[^.]*cannot be undone\.\s*/i, "")
      || "Irreversible calls need approval.";
  }
  return [rule, reason];
}

export function chip(view) {
  const [colour, drawn, title] = effectOf(view);
  return make("span", { class: `chip ${colour}` }, drawing(drawn), title);
}
