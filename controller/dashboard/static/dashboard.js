// Keeps the page fresh without moving the focus, and asks before a button changes something.
"use strict";

const REFRESH_MILLISECONDS = 5000;
const TROUBLE = document.getElementById("trouble");
const NEWS = document.getElementById("news");
const PAUSE = document.getElementById("pause");
const CONFIRM = document.getElementById("confirm");

let paused = false;
let asking = null;

function keepState(region) {
  const active = document.activeElement;
  return {
    open: [...region.querySelectorAll("details[open]")].map((item) => item.id),
    scrolled: [...region.querySelectorAll(".scroll")].map((item) => [item.scrollLeft, item.scrollTop]),
    chosen: [...region.querySelectorAll("select")].map((item) => [item.id, item.value]),
    focused: active !== region && region.contains(active) ? active.id : null,
  };
}

function restoreState(region, state) {
  for (const id of state.open) {
    const item = document.getElementById(id);
    if (item) item.open = true;
  }
  [...region.querySelectorAll(".scroll")].forEach((item, index) => {
    if (state.scrolled[index]) [item.scrollLeft, item.scrollTop] = state.scrolled[index];
  });
  for (const [id, value] of state.chosen) {
    const item = document.getElementById(id);
    if (item && [...item.options].some((option) => option.value === value)) item.value = value;
  }
  if (state.focused) {
    // A button that went away leaves the focus with its region, not at the top of the page.
    (document.getElementById(state.focused) || region).focus({ preventScroll: true });
  }
}

// A table that is being scrolled or a list that is being chosen from stays as it is until the reader moves on.
function inUse(region) {
  const active = document.activeElement;
  if (active === region || !region.contains(active)) return false;
  return !active.id || active.tagName === "SELECT";
}

function replaceRegions(fresh) {
  const title = document.getElementById("title");
  const news = title.dataset.newsId;
  for (const region of document.querySelectorAll("[data-live]")) {
    const replacement = fresh.getElementById(region.id);
    if (!replacement || replacement.innerHTML === region.dataset.shown || inUse(region)) continue;
    const state = keepState(region);
    region.dataset.shown = replacement.innerHTML;
    Object.assign(region.dataset, replacement.dataset);
    region.replaceChildren(...document.importNode(replacement, true).childNodes);
    restoreState(region, state);
  }
  if (title.dataset.newsId !== news) NEWS.textContent = title.dataset.news;
}

function tellTrouble(text) {
  if (TROUBLE.textContent !== text) TROUBLE.textContent = text;
  TROUBLE.hidden = text === "";
}

/** Fetches the page again; false: there is no point in going on. */
async function refresh() {
  const address = new URL(location.href);
  address.searchParams.delete("done");
  try {
    const response = await fetch(address, { credentials: "same-origin", cache: "no-store" });
    if (!response.ok) throw new Error(`it answered ${response.status}`);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (!fresh.getElementById("title")) {
      tellTrouble("Your session is over: reload the page and sign in again. The numbers no longer change.");
      return false;
    }
    if (!paused && !CONFIRM.open) replaceRegions(fresh);
    tellTrouble("");
  } catch (error) {
    tellTrouble(`The controller cannot be reached (${error.message}): the numbers are old; it is tried again.`);
  }
  return true;
}

async function keepFresh() {
  await new Promise((resolve) => setTimeout(resolve, REFRESH_MILLISECONDS));
  if (paused || CONFIRM.open || document.hidden || (await refresh())) keepFresh();
}

// The answer to a form stands at an address that only takes forms: it is not refreshed.
if (document.getElementById("title") && location.pathname === "/") {
  PAUSE.hidden = false;
  PAUSE.addEventListener("click", () => {
    paused = !paused;
    PAUSE.setAttribute("aria-pressed", String(paused));
  });
  for (const region of document.querySelectorAll("[data-live]")) region.tabIndex = -1;
  keepFresh();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.question || form.elements.confirmed) return;
  event.preventDefault();
  asking = form;
  const version = form.elements.version ? form.elements.version.value : "";
  document.getElementById("confirm-title").textContent = form.dataset.title;
  document.getElementById("confirm-text").textContent = form.dataset.question.replace("{version}", version);
  document.getElementById("confirm-yes").textContent = form.dataset.yes;
  CONFIRM.returnValue = "no";
  CONFIRM.showModal();
  document.getElementById("confirm-no").focus();
});

CONFIRM.addEventListener("close", () => {
  if (CONFIRM.returnValue !== "yes" || !asking) return;
  const confirmed = document.createElement("input");
  confirmed.type = "hidden";
  confirmed.name = "confirmed";
  confirmed.value = "yes";
  asking.append(confirmed);
  asking.submit();
});

const told = document.querySelector("[data-focus]");
if (told) told.focus();
