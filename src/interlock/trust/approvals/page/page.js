// Chooses the view by the address.

import { approval } from "./approval.js";
import { enrol } from "./enrol.js";
import { inbox } from "./inbox.js";
import { make, show } from "./shown.js";

const last = location.pathname.split("/").pop();
document.getElementById("host").textContent = location.host;

try {
  if (!window.isSecureContext) {
    throw new Error("Browsers can sign only on https:// pages and on http://localhost.");
  }
  if (last === "enrol") {
    await enrol();
    // Another code, opened in the same tab.
    addEventListener("hashchange", () => { if (location.hash) enrol(); });
  } else if (last === "") await inbox();
  else await approval(last);
} catch (error) {
  const unknown = error.word === "unknown_approval";
  show(unknown ? "Unknown call" : "Error", make("section", { class: "card", id: "problem" },
    make("h1", {}, unknown ? "No such call" : "This page cannot be shown"),
    make("p", { class: "words" }, unknown
      ? "This call was decided some time ago, or the address is wrong." : error.message),
    make("p", {}, make("a", { href: "./" }, "Pending calls"))));
}
