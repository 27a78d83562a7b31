// Fetches this page again and again, and changes what has changed: focus, scroll position and open blocks stay.
const SECONDS = 2;
const status = document.getElementById("live");
let version = null;
let timer;

function own(node) {
  return [...node.childNodes].filter((child) => child.dataset?.overlay === undefined);
}

// `open`, `value`, `checked` and `selected` belong to the reader once the page is shown.
function morph(before, after) {
  if (before.isEqualNode(after)) return;
  if (before.nodeType !== Node.ELEMENT_NODE) {
    before.data = after.data;
    return;
  }
  for (const { name } of [...before.attributes]) {
    if (name !== "open" && !after.hasAttribute(name)) before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  const old = own(before);
  const named = new Map(old.filter((child) => child.id).map((child) => [child.id, child]));
  const unnamed = old.filter((child) => !child.id);
  const kept = new Set();
  let place = old[0] ?? null;
  for (const child of [...after.childNodes]) {
    const match = child.id ? named.get(child.id) : unnamed.find((node) => !kept.has(node));
    if (match?.nodeName === child.nodeName) {
      kept.add(match);
      if (match === place) place = place.nextSibling;
      else before.insertBefore(match, place);
      morph(match, child);
    } else {
      before.insertBefore(child, place);
    }
  }
  for (const child of old) if (!kept.has(child)) child.remove();
}

function say(text, isStale) {
  status.textContent = text;
  status.className = isStale ? "stale" : "";
}

async function fetchPage() {
  const asked = location.href;
  const response = await fetch(asked, { headers: version ? { "If-None-Match": version } : {}, cache: "no-store" });
  const text = await response.text();
  if (asked !== location.href) return; // the reader has chosen something else meanwhile
  if (response.status !== 304) {
    const next = new DOMParser().parseFromString(text, "text/html");
    const main = next.querySelector("main");
    if (!main) return say(text, true);
    morph(document.querySelector("main"), main);
    document.title = next.title;
    version = response.headers.get("ETag");
  }
  say(`live · ${new Date().toLocaleTimeString()}`, false);
}

async function update() {
  const began = performance.now();
  timer = null;
  try {
    await fetchPage();
  } catch {
    say("`hookline serve` does not answer: this page is no longer live", true);
  }
  // A page that takes long to make is asked for less often, so that it takes a tenth of a core at most.
  const wait = document.hidden ? 30000 : Math.max(SECONDS * 1000, 10 * (performance.now() - began));
  if (timer === null) plan(wait); // else a newer one is planned
}

function plan(wait) {
  clearTimeout(timer);
  timer = setTimeout(update, wait);
}

function choose(form) {
  const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", `/?${chosen}`);
  version = null;
  plan(100); // more letters may follow
}

document.addEventListener("input", (event) => event.target.form && choose(event.target.form));
document.addEventListener("submit", (event) => {
  event.preventDefault();
  choose(event.target);
});
document.addEventListener("visibilitychange", () => document.hidden || plan(0));
plan(SECONDS * 1000);
