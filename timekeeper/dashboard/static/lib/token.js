/** The token, in this tab's session storage alone: gone when the tab closes, never in the address, a cookie or a log. */

const KEY = "fairgpu-token";
const REASON = "fairgpu-reason";
let held = null;

/** The token, or null. */
export function token() {
  if (held === null) {
    try {
      held = sessionStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing: the token lasts until the page is loaded anew
    }
  }
  return held;
}

/** Keeps a token. */
export function keep(text) {
  held = text;
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // As above.
  }
}

/** Forgets it. */
export function forget() {
  held = null;
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

/** Stores, for the page that comes next in this tab, why it has to ask. */
export function hand(reason) {
  try {
    if (reason !== "") sessionStorage.setItem(REASON, reason);
  } catch {
    // As above; it asks without a reason.
  }
}

/** Why the page before asks this one to sign in; once. */
export function handed() {
  try {
    const reason = sessionStorage.getItem(REASON) ?? "";
    sessionStorage.removeItem(REASON);
    return reason;
  } catch {
    return "";
  }
}

/** When a token expires, in milliseconds since 1970, as it says itself; null where it does not (it need be no JWT). */
export function expiry(text) {
  try {
    const payload = text.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    const { exp } = JSON.parse(atob(payload));
    return typeof exp === "number" ? exp * 1000 : null;
  } catch {
    return null;
  }
}

/** What a person pasted, without the words and line breaks that come along. */
export function cleaned(text) {
  return text.replace(/^\s*(authorization:)?\s*(bearer\s)?/i, "").replaceAll(/\s+/g, "");
}
