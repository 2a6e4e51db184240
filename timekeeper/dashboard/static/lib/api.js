/**
 * Asks the timekeeper. Every refusal becomes a Problem with what the server says of it (RFC 9457). A question that comes
 * too soon (429) is asked again after the seconds that Retry-After names: the timekeeper goes on with questions that the
 * page has given up, and those count.
 */

import { token } from "./token.js";

const LIMIT_MS = 30_000;
const MAX_PAGES = 100;

/** An answer that is none: `status` is the HTTP status, 0 where no answer came. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

/** The JSON at a path. */
export async function get(path, query = {}, signal = undefined) {
  const response = await ask(path, query, "application/json", signal);
  return response.json();
}

/** The items of all pages of a list. */
export async function pages(path, name, query = {}, signal = undefined) {
  const items = [];
  let cursor = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const answer = await get(path, cursor === null ? query : { ...query, cursor }, signal);
    items.push(...answer[name]);
    cursor = answer.cursor ?? answer.next ?? null;
    if (cursor === null) break;
  }
  return items;
}

/** A table of all pages as CSV (RFC 4180), for a file to keep; every page begins with the same line of names. */
export async function table(path, query) {
  const parts = [];
  for (let cursor = null; parts.length < MAX_PAGES;) {
    const response = await ask(path, cursor === null ? query : { ...query, cursor }, "text/csv", undefined);
    const text = await response.text();
    parts.push(parts.length === 0 ? text : text.slice(text.indexOf("\n") + 1));
    const following = /<([^>]+)>; *rel="?next/.exec(response.headers.get("Link") ?? "");
    if (!following) return parts.join("");
    cursor = new URL(following[1], address(path)).searchParams.get("cursor");
  }
  throw new Problem(0, "Too much for one file", "Choose a shorter time, or save it with fairgpu usage -o csv.");
}

async function ask(path, query, accept, signal) {
  const where = address(path);
  where.search = new URLSearchParams(query);
  const limit = AbortSignal.timeout(LIMIT_MS);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const ends = Date.now() + LIMIT_MS;
  for (;;) {
    const response = await answer(where, accept, either);
    if (response.ok) return response;
    const problem = await refusal(response);
    const seconds = response.status === 429 ? Number(response.headers.get("Retry-After")) : 0;
    if (!(seconds > 0) || Date.now() + seconds * 1000 > ends) throw problem;
    await pause(seconds * 1000, signal);
  }
}

async function answer(where, accept, signal) {
  try {
    return await fetch(where, {
      headers: { Accept: `${accept}, application/problem+json`, Authorization: `Bearer ${token()}` },
      credentials: "omit",
      cache: "no-cache",
      referrerPolicy: "no-referrer",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const late = error.name === "TimeoutError";
    throw new Problem(0, "No answer", late ? "The timekeeper took too long to answer." : "The timekeeper cannot be reached.");
  }
}

/** Waits for some milliseconds, or until the signal aborts, which throws its AbortError. */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.addEventListener("abort", () => reject(signal.reason));
    setTimeout(resolve, milliseconds);
  });
}

function address(path) {
  return new URL(path, document.baseURI);
}

async function refusal(response) {
  let document = {};
  try {
    document = await response.json();
  } catch {
    // Something between here and the timekeeper answered in its own words.
  }
  const problem = new Problem(response.status, document.title ?? `HTTP ${response.status}`, document.detail ?? "");
  if (response.status === 401) dispatchEvent(new CustomEvent("unauthenticated", { detail: problem.message }));
  return problem;
}
