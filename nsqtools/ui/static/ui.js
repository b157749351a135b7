"use strict";
// Live pages: the server sends the live part of this page with each new picture.
const live = document.getElementById("live");
const state = document.getElementById("state");
let source = null;

// Nodes that are kept keep their focus, selection, scroll position, and the click under way.
function renew(old, fresh) {
  const parts = [...fresh.childNodes];
  parts.forEach((part, at) => {
    const was = old.childNodes[at];
    if (!was) old.append(part);
    else if (was.nodeName !== part.nodeName) was.replaceWith(part);
    else if (was.nodeType !== Node.ELEMENT_NODE) {
      if (was.nodeValue !== part.nodeValue) was.nodeValue = part.nodeValue;
    } else {
      for (const { name } of [...was.attributes]) if (!part.hasAttribute(name)) was.removeAttribute(name);
      for (const { name, value } of part.attributes) was.setAttribute(name, value);
      renew(was, part);
    }
  });
  while (old.childNodes.length > parts.length) old.lastChild.remove();
}

function show(html) {
  const active = document.activeElement;
  const href = active.getAttribute("href");
  const fresh = document.createElement("div");
  fresh.innerHTML = html;
  renew(live, fresh);
  if (!href || (active.isConnected && active.getAttribute("href") === href)) return;
  [...live.querySelectorAll("a")].find((each) => each.getAttribute("href") === href)?.focus({ preventScroll: true });
}

function listen() {
  if (source || document.hidden || !("live" in live.dataset)) return;
  source = new EventSource(location.href);
  source.onmessage = (event) => { show(event.data); state.textContent = "live"; };
  source.onerror = () => {
    state.textContent = "no connection: the numbers are old";
    if (source.readyState !== EventSource.CLOSED) return;
    source = null; // after an answer such as 503, a browser does not try again by itself
    setTimeout(listen, 3000);
  };
}

function pause() {
  if (!source) return;
  source.close();
  source = null;
  state.textContent = "paused";
}

document.addEventListener("visibilitychange", () => (document.hidden ? pause() : listen()));
addEventListener("pagehide", pause);
addEventListener("pageshow", listen); // also after the page has been loaded

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape" && typing) typing.blur();
  if (typing) return;
  const rows = [...document.querySelectorAll("tbody th a")];
  const at = rows.indexOf(document.activeElement);
  const rel = { u: "up", n: "next", p: "prev" }[event.key];
  if (event.key === "/" && document.getElementById("filter")) document.getElementById("filter").focus();
  else if (event.key === "j" && rows.length) rows[Math.min(at + 1, rows.length - 1)].focus();
  else if (event.key === "k" && rows.length) rows[Math.max(at - 1, 0)].focus();
  else if (rel) document.querySelector(`[rel=${rel}]`)?.click();
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
