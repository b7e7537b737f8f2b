// Asks for /load once a second while somebody looks, and shows it.

import { History } from "./history.js";
import { render, state } from "./view.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const KEY = "tidegate-key";
// With anything else in a header, fetch throws or the server cuts it short.
const SENDABLE = /^[\x21-\x7e]+$/;

const history = new History();
let timer = null;
let asking = false;

/** The key of this tab, if there is one that can be sent. */
function known() {
  const key = sessionStorage.getItem(KEY);
  if (key === null || SENDABLE.test(key)) return key;
  sessionStorage.removeItem(KEY);
  return null;
}

async function ask() {
  const key = known();
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  return fetch("load", { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
}

async function look() {
  const answer = await ask();
  if (answer.status === 401) {
    const given = sessionStorage.getItem(KEY);
    sessionStorage.removeItem(KEY);
    state("key", given ? "that key is not right" : "a key is needed");
    if (given) document.getElementById("key").select();
    return false;
  }
  if (answer.status === 503) {
    state("away", "the router is being restarted");
    return true;
  }
  if (!answer.ok) throw new Error(`${answer.status}`);
  history.add(performance.now() / 1000, await answer.json());
  render(history.moments);
  state("live", "live");
  return true;
}

/** Look now, and again in a second; stop while nobody looks, or a key is needed. */
async function run() {
  clearTimeout(timer);
  if (asking || document.visibilityState !== "visible") return;
  asking = true;
  let again = true;
  try {
    again = await look();
  } catch {
    state("away", "the server does not answer");
  } finally {
    asking = false;
  }
  if (again) timer = setTimeout(run, EVERY_MS);
}

document.addEventListener("visibilitychange", run);
document.getElementById("sort").addEventListener("change", () => {
  if (history.moments.length) render(history.moments);
});
document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("key");
  const key = field.value.trim();
  if (!SENDABLE.test(key)) {
    state("key", "no key has such characters");
    field.select();
    return;
  }
  sessionStorage.setItem(KEY, key);
  field.value = "";
  run();
});

run();
