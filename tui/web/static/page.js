// Asks for the page that the address names every two seconds, and redraws the blocks that changed.

import { draw, element } from "./draw.js";

const POLL_MS = 2000; // drawing is most of what the page costs
const PAGES = [
  ["node", "1 Node"], ["swarm", "2 Swarm"], ["peers", "3 Peers"], ["events", "4 Events"], ["edge", "5 Edge"],
  ["nodes", "o All nodes"], ["agreed", "m Method"], ["doctor", "d Doctor"], ["help", "? Help"],
];
const KEYS = { 1: "node", 2: "swarm", 3: "peers", 4: "events", 5: "edge", o: "nodes", m: "agreed", d: "doctor", "?": "help" };
const NAMES = ["page", "node", "peer", "sort", "reverse", "level", "words", "every"];
const find = (id) => document.getElementById(id);

let drawn = [];
let nodes = [];
let timer = 0;
let asking = 0; // the number of the newest question: an answer to an older one is dropped

function asked() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
}

function linked(changes) {
  const state = { ...asked(), ...changes };
  if ("page" in changes) delete state.peer;
  return `#${new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""))}`;
}

function say(problem) {
  const box = find("problem");
  const text = problem === null ? "" : `! ${problem}`;
  if (box.textContent !== text) box.textContent = text;
  box.hidden = problem === null;
}

function links(nav, entries) {
  const shown = JSON.stringify(entries);
  if (nav.dataset.shown === shown) return;
  nav.dataset.shown = shown;
  nav.replaceChildren(...entries.map(({ text, href, chosen }) => element("a", chosen ? { href, "aria-current": "page" } : { href }, text)));
}

function replaced(old, made) {
  const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const scrolled = old.querySelector(".scroll")?.scrollLeft ?? 0;
  old.replaceWith(made);
  if (scrolled) made.querySelector(".scroll")?.scrollTo({ left: scrolled });
  if (focused !== null) [...made.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
}

function show(view) {
  document.title = view.title;
  nodes = view.nodes;
  say(view.problem);
  links(find("pages"), PAGES.map(([name, text]) => ({ text, href: linked({ page: name }), chosen: name === view.page })));
  find("nodes").hidden = nodes.length < 2;
  links(find("nodes"), nodes.map(({ name, label, troubled, chosen }) => (
    { text: troubled ? `${label}!` : label, href: linked({ node: name, peer: "" }), chosen }
  )));
  const filter = find("filter");
  if (filter.hidden && view.page === "events") {
    const { words = "", level = "all", every = "" } = asked();
    [filter.elements.words.value, filter.elements.level.value, filter.elements.every.checked] = [words, level, every !== ""];
  }
  filter.hidden = view.page !== "events";
  const main = find("blocks");
  main.className = view.page;
  const address = location.hash; // links of a block depend on it
  view.blocks.forEach((block, place) => {
    const wanted = `${address} ${JSON.stringify(block)}`;
    if (drawn[place] === wanted) return;
    drawn[place] = wanted;
    const made = draw(block, linked);
    if (main.children[place]) replaced(main.children[place], made);
    else main.append(made);
  });
  drawn.length = view.blocks.length;
  while (main.children.length > view.blocks.length) main.lastChild.remove();
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  const number = ++asking;
  try {
    const answer = await fetch(`view.json?${new URLSearchParams(asked())}`, { cache: "no-store" });
    const view = answer.ok ? await answer.json() : null;
    if (number !== asking) return;
    if (view === null) say(`the page was refused (${answer.status}); start \`starling web\` again`);
    else show(view);
  } catch {
    if (number !== asking) return;
    say("`starling web` does not answer; start it again and open the address that it prints");
  }
  timer = setTimeout(poll, POLL_MS);
}

function step(by) {
  const place = nodes.findIndex((each) => each.chosen);
  if (nodes.length > 1) location.hash = linked({ node: nodes[(place + by + nodes.length) % nodes.length].name, peer: "" });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select")) return;
  if (event.key in KEYS) location.hash = linked({ page: KEYS[event.key] });
  else if (event.key === "n") step(1);
  else if (event.key === "p") step(-1);
  else return;
  event.preventDefault();
});
find("filter").addEventListener("input", () => {
  const { words, level, every } = find("filter").elements;
  location.replace(linked({ words: words.value, level: level.value === "all" ? "" : level.value, every: every.checked ? "1" : "" }));
});
find("filter").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", poll);
document.addEventListener("visibilitychange", poll);
poll();
