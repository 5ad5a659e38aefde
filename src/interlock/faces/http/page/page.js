// Which view this address is.

import { approval } from "./approval.js";
import { enrol } from "./enrol.js";
import { inbox } from "./inbox.js";
import { make, show } from "./shown.js";

const last = location.pathname.split("/").pop();
document.getElementById("host").textContent = location.host;

try {
  if (!window.isSecureContext) {
    throw new Error("Browsers sign only on https:// pages, or on http://localhost.");
  }
  if (last === "enrol") await enrol();
  else if (last === "") await inbox();
  else await approval(last);
} catch (error) {
  show("Approvals", make("section", { class: "card", id: "problem" },
    make("h1", {}, error.word === "unknown_approval" ? "Nothing waits here" : "This cannot be shown"),
    make("p", { class: "words" }, error.message)));
}
