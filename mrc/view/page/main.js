// SPDX-License-Identifier: Apache-2.0
// Joins the parts of the page: what comes from the server, time, mouse and keys.

import { $, say } from "./dom.js";
import * as chart from "./chart.js";
import { Fabric } from "./fabric.js";
import { History, SECONDS } from "./history.js";
import { savePng, saveSvg } from "./save.js";
import { planeOf } from "./text.js";
import { Tools } from "./tools.js";
import { Transfers } from "./transfers.js";

const history = new History();
const fabric = new Fabric($("fabric"));
const transfers = new Transfers();
const problems = new Map();
const tools = new Tools((refused) => tell("change", refused));
let bed = null;
let past = null; // the time that is shown; null: now
let playing = false;
let due = false;

function tell(source, problem) {
  problems.set(source, problem);
  const text = [...problems.values()].filter(Boolean).join("; ");
  $("problem").hidden = !text;
  say($("problem"), text);
}

// ---- from the server ---------------------------------------------------------------------------

const source = new EventSource("feed");
const on = (event, act) => source.addEventListener(event, ({ data }) => act(JSON.parse(data)));

on("bed", (found) => {
  bed = found;
  history.clear("links");
  document.title = `mrc: ${bed.name}`;
  say($("name"), bed.name);
  say($("title"), bed.title);
  $("bed").hidden = $("tools").hidden = false;
  redraw(null);
});
on("problem", ({ source: of, text }) => tell(of, text));
for (const kind of ["links", "endpoints"]) {
  on(kind, (frame) => {
    history.add(kind, frame);
    soon();
  });
}
on("endpoints", ({ endpoints }) => {
  if (bed === null) say($("title"), `${endpoints} endpoint${endpoints === 1 ? "" : "s"}`);
});
source.addEventListener("open", () => connected(true));
source.addEventListener("error", () => connected(false));

function connected(isOpen) {
  tell("connection", isOpen ? "" : "no connection: has the command on this machine ended?");
  showState(isOpen);
}

function showState(isOpen = source.readyState === EventSource.OPEN) {
  const [name, text] = !isOpen ? ["lost", "not connected"] : past === null
    ? ["live", "live"] : ["past", playing ? "replay" : "stopped"];
  $("state").className = name;
  say($("state"), text);
}

// ---- what is shown -----------------------------------------------------------------------------

function redraw(only) {
  fabric.draw(bed, Math.max(320, $("bed").clientWidth), only);
  fabric.select(tools.selected);
  show();
}

/** Draws before the next frame of the screen, however much has come. */
function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    show();
  });
}

function show() {
  const now = history.now;
  if (past !== null) past = Math.max(past, now - SECONDS); // older frames are gone
  const time = past ?? now;
  const links = history.at("links", time);
  if (bed && links) {
    fabric.show(links);
    tools.show(bed, links, past !== null);
  }
  const endpoints = history.at("endpoints", time);
  if (endpoints) transfers.show(history, endpoints);
  chart.draw($("chart"), history, now, past);
  const ago = Math.max(-SECONDS, time - now);
  if (past !== null || document.activeElement !== $("time")) $("time").value = ago;
  say($("time-text"), past === null ? "now" : `${ago.toFixed(1)} s`);
}

// ---- time --------------------------------------------------------------------------------------

function setTime(time, isPlaying) {
  past = time;
  playing = isPlaying;
  if (past === null) tell("change", "");
  $("live").setAttribute("aria-pressed", String(past === null));
  showState();
  soon();
}

function play(last) {
  requestAnimationFrame((at) => {
    if (!playing) return;
    const time = past + (at - last) / 1000;
    if (time >= history.now) setTime(null, false);
    else {
      setTime(time, true);
      play(at);
    }
  });
}

$("live").addEventListener("click", () => setTime(null, false));
$("time").addEventListener("input", () => {
  const ago = Number($("time").value);
  setTime(ago >= 0 ? null : history.now + ago, false);
});
$("play").addEventListener("click", () => {
  const first = history.all("endpoints").concat(history.all("links"))
    .reduce((least, frame) => Math.min(least, frame.at), history.now);
  setTime(past ?? Math.max(first, history.now - SECONDS), true);
  play(performance.now());
});

// ---- mouse and keys ----------------------------------------------------------------------------

function select(target) {
  tools.selected = target;
  fabric.select(target);
  soon();
}

function toggle(target) {
  if (past === null) tools.toggle(target);
  else tell("change", "this is the past: press Live to break or heal parts");
}

$("fabric").addEventListener("click", (event) => {
  const plane = event.target.closest("[data-zoom]")?.dataset.zoom;
  if (plane) {
    zoom(Number(plane));
    return;
  }
  const target = event.target.closest("[data-target]")?.dataset.target;
  if (!target) return;
  select(target);
  toggle(target);
});

const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

$("fabric").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { key } = event;
  if (key in ARROWS) select(fabric.beside(tools.selected, ...ARROWS[key]));
  else if (key === "Enter" && tools.selected) toggle(tools.selected);
  else if (key === "h" && tools.selected && past === null) tools.heal(tools.selected);
  else if (key === "H" && past === null) tools.heal("all");
  else if (/^[1-9]$/.test(key) && fabric.has(`plane:${key}`)) select(`plane:${key}`);
  else if (key === "z") zoom();
  else if (key === " ") setTime(past === null ? history.now : null, false);
  else return;
  event.preventDefault();
});

/** One plane with all its links, or again all planes. */
function zoom(plane = planeOf(tools.selected ?? "plane:1")) {
  redraw(fabric.only === null ? plane : null);
}

let width = 0;
new ResizeObserver(() => {
  if (!bed || width === $("bed").clientWidth) return;
  width = $("bed").clientWidth;
  redraw(fabric.only);
}).observe($("bed"));

for (const [id, save] of [["save-svg", saveSvg], ["save-png", savePng]]) {
  $(id).addEventListener("click", () => {
    const heading = `${$("name").textContent}: ${$("title").textContent}`;
    save(document.title.replace(/\W+/g, "-"), heading, [$("fabric"), $("chart")]);
  });
}
