"use strict";
// Live pages: the server sends the live part of this page with each new picture.
const live = document.getElementById("live");
const state = document.getElementById("state");
let source = null;

function show(html) {
  const active = document.activeElement;
  const at = live.contains(active) ? [...live.querySelectorAll("a, button")].indexOf(active) : -1;
  const href = at < 0 ? null : active.getAttribute("href");
  live.innerHTML = html;
  if (at < 0) return;
  const all = [...live.querySelectorAll("a, button")];
  const again = all.find((each) => href && each.getAttribute("href") === href) || all[at];
  if (again) again.focus({ preventScroll: true });
}

function listen() {
  if (source || document.hidden || !("live" in live.dataset)) return;
  source = new EventSource(location.href);
  source.onopen = () => { state.textContent = "live"; };
  source.onmessage = (event) => { show(event.data); state.textContent = "live"; };
  source.onerror = () => { state.textContent = "no connection: the numbers are old"; };
}

function pause() {
  if (!source) return;
  source.close();
  source = null;
  state.textContent = "paused";
}

document.addEventListener("visibilitychange", () => (document.hidden ? pause() : listen()));
addEventListener("pagehide", pause);
addEventListener("pageshow", listen);
listen();

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape" && typing) typing.blur();
  if (typing) return;
  const rows = [...document.querySelectorAll("tbody th a")];
  const at = rows.indexOf(document.activeElement);
  if (event.key === "/" && document.getElementById("filter")) document.getElementById("filter").focus();
  else if (event.key === "j" && rows.length) rows[Math.min(at + 1, rows.length - 1)].focus();
  else if (event.key === "k" && rows.length) rows[Math.max(at - 1, 0)].focus();
  else if (event.key === "u") document.querySelector("[rel=up]")?.click();
  else if (event.key === "n") document.querySelector("[rel=next]")?.click();
  else if (event.key === "p") document.querySelector("[rel=prev]")?.click();
  else return;
  event.preventDefault();
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const text = document.getElementById(copy.dataset.copy);
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Selected: press Ctrl-C";
    }
  }
  if (event.target.matches("#all")) {
    for (const box of document.querySelectorAll("[name=pick]")) box.checked = event.target.checked;
  }
});
