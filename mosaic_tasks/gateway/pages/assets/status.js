// Renews the parts of a page that changed while it is looked at; without this script the page renews itself as a whole.
"use strict";

const link = document.getElementById("link");
let source = null;

function say(words) {
  if (link && link.textContent !== words) link.textContent = words;
}

/* Scrolled places and the focus outlive the new text of a part; whoever reads the end of what grows goes on reading it. */
function swap(part, html) {
  const rows = [...part.querySelectorAll("tr[id]")];
  const boxes = [...part.querySelectorAll("[id]:not(tr), pre")];
  const scrolled = boxes.map((box) => [box.scrollLeft, box.scrollTop, box.scrollHeight - box.clientHeight]);
  const active = document.activeElement;
  const focused = part.contains(active) ? place(part, active) : -1;
  const before = announced(part);
  part.innerHTML = html;
  keep(rows);
  announce(part, before);
  const now = [...part.querySelectorAll("[id]:not(tr), pre")];
  if (now.length === boxes.length) {
    now.forEach((box, index) => {
      const [left, top, most] = scrolled[index];
      box.scrollLeft = left;
      box.scrollTop = box.classList.contains("follows") && top >= most - 4 ? box.scrollHeight : top;
    });
  }
  if (focused >= 0) (active.isConnected ? active : focusable(part)[focused])?.focus({ preventScroll: true });
}

/* A new table has empty rows. Those that were there are put into their places; what is new in one comes by itself. */
function keep(rows) {
  for (const row of rows) {
    const place = document.getElementById(row.id);
    if (place && !place.firstChild) place.replaceWith(row);
  }
}

/* A screen reader hears of new text only in an element that was there before. */
function announce(part, before) {
  const words = announced(part);
  if (words && words !== before) document.getElementById("news").textContent = words;
}

function announced(part) {
  return part.querySelector("[data-announced] .state")?.lastChild.textContent.trim();
}

function focusable(part) {
  return [...part.querySelectorAll("a[href], button, input, [tabindex]")];
}

function place(part, element) {
  return focusable(part).indexOf(element);
}

/* The new texts of parts, by their ids; a part in which somebody selects a text waits until that is over. */
const awaited = {};

function renew() {
  let waits = false;
  for (const [id, html] of Object.entries(awaited)) {
    const part = document.getElementById(id);
    if (part ? isSelected(part) : waits) {
      waits = true; // and so does a row of a table that waits
      continue;
    }
    delete awaited[id];
    if (part) swap(part, html);
  }
  tick();
}

function isSelected(part) {
  const selection = document.getSelection();
  return !selection.isCollapsed && selection.containsNode(part, true);
}

function connect() {
  if (source) return;
  source = new EventSource(document.body.dataset.live);
  source.addEventListener("open", () => say("live"));
  source.addEventListener("change", (event) => {
    Object.assign(awaited, JSON.parse(event.data));
    renew();
  });
  source.addEventListener("error", () => {
    say("connecting …");
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect(); // it does not come again by itself after an answer that is no stream
      setTimeout(again, 3000);
    }
  });
}

/* Whoever may not look any more is led to where one signs in. What is past its retention stays as it was seen last. */
async function again() {
  try {
    const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    if (answer.type === "opaqueredirect") return location.reload();
    if (answer.status === 404) return say("not kept any more");
  } catch {
    // the gateway is away
  }
  follow();
}

function disconnect() {
  if (source) source.close();
  source = null;
}

/* Who clicks twice means it once. */
let isSent = false;

function once(event) {
  if (isSent) event.preventDefault();
  isSent = event.target.method === "post";
}

/* A browser has few connections to a server: pages that nobody sees need none. */
function follow() {
  if (document.visibilityState === "visible") connect();
  else disconnect();
}

/* As `duration` in mosaic_tasks/inspection/wording.py, by the second. */
function duration(ms) {
  const seconds = Math.max(Math.floor(ms / 1000), 0);
  const minutes = Math.floor(seconds / 60);
  const two = (number) => String(number).padStart(2, "0");
  if (minutes < 1) return `${seconds} s`;
  if (minutes < 60) return `${minutes} min ${two(seconds % 60)} s`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${two(Math.floor((minutes % 1440) / 60))} h`;
}

/* Counts on from what the server said, not from its clock: the one here may be another. */
function tick() {
  for (const span of document.querySelectorAll("[data-took]")) {
    span.seen ??= performance.now();
    span.textContent = duration(Number(span.dataset.took) + performance.now() - span.seen);
  }
}

document.addEventListener("visibilitychange", follow);
document.addEventListener("selectionchange", renew);
addEventListener("pagehide", disconnect);
addEventListener("pageshow", follow);
addEventListener("pageshow", () => (isSent = false));
addEventListener("submit", once);
setInterval(tick, 1000);
for (const box of document.querySelectorAll("pre.follows")) box.scrollTop = box.scrollHeight;
follow();
