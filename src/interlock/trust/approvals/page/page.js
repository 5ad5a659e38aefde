// Chooses the view by the path of the page.

import { showApproval } from "./approval.js";
import { showEnrolment } from "./enrol.js";
import { showInbox } from "./inbox.js";
import { make, showPage } from "./elements.js";

const name = location.pathname.split("/").pop();
document.getElementById("host").textContent = location.host;

try {
  if (!window.isSecureContext) {
    throw new Error("Browsers can sign only on https:// pages and on http://localhost.");
  }
  if (name === "enrol") {
    await showEnrolment();
    // Another enrolment code was opened in the same tab.
    addEventListener("hashchange", () => { if (location.hash) showEnrolment(); });
  } else if (name === "") await showInbox();
  else await showApproval(name);
} catch (error) {
  const unknown = error.code === "unknown_approval";
  showPage(unknown ? "Unknown call" : "Error", make("section", { class: "card", id: "problem" },
    make("h1", {}, unknown ? "No such call" : "This page cannot be shown"),
    make("p", { class: "words" }, unknown
      ? "This call was decided some time ago, or the address is wrong." : error.message),
    make("p", {}, make("a", { href: "./" }, "Pending calls"))));
}
