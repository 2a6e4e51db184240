/** Takes a token from a person, and says when it is no longer accepted. */

import { byId } from "../lib/dom.js";
import { span } from "../lib/format.js";
import { cleaned, expiry, forget, hand, handed, keep, token } from "../lib/token.js";

const FORM = /^[A-Za-z0-9\-._~+/]+=*$/;

/** Wires the form; `entered` is called once there is a token. */
export function startSignIn(entered) {
  byId("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = byId("token");
    const text = cleaned(field.value);
    if (!FORM.test(text)) {
      complain("This is no token: it has characters that no token has. Paste the output of the command below.");
      return;
    }
    field.value = "";
    keep(text);
    entered();
  });
  byId("sign-out").addEventListener("click", () => leave("", location.pathname));
  addEventListener("pageshow", ({ persisted }) => {
    if (persisted && token() === null) location.reload(); // the browser has brought back a page that was left
  });
  if (!token()) ask(handed());
}

/** Forgets the token and all that was shown, on the screen and in memory: the page begins anew, and asks for a token. */
export function leave(reason, address = location.href) {
  forget();
  hand(reason);
  document.body.replaceChildren();
  if (address === location.href) location.reload();
  else location.replace(address);
}

/** Asks for a token, with the reason where there is one. */
export function ask(reason) {
  forget();
  document.title = "Sign in · FairGPU budgets";
  byId("board").hidden = true;
  byId("who").hidden = true;
  byId("sign-out").hidden = true;
  byId("sign-in").hidden = false;
  complain(reason);
  byId("token").focus();
}

/** Shows who is signed in, and for how long their token will do. */
export function welcome(name) {
  byId("sign-in").hidden = true;
  byId("board").hidden = false;
  byId("sign-out").hidden = false;
  const who = byId("who");
  who.hidden = false;
  who.title = name;
  who.textContent = name.replace(/^system:serviceaccount:/, "").replace(":", "/");
  const ends = expiry(token() ?? "");
  if (ends !== null && ends - Date.now() < 3_600_000) {
    who.textContent += ` · token ends in ${span(ends - Date.now())}`;
  }
}

function complain(text) {
  const problem = byId("sign-in-problem");
  problem.hidden = text === "";
  problem.textContent = text;
  byId("token").setAttribute("aria-invalid", String(text !== ""));
}
