// SPDX-License-Identifier: Apache-2.0
// Joins the parts of the page: what comes from the server, mouse and keys.

import { $, planeOf, say } from "./dom.js";
import { Fabric } from "./fabric.js";
import { Tools } from "./tools.js";
import { drawChart, SECONDS, Transfers } from "./transfers.js";

const history = { links: [], endpoints: [] }; // the frames of the last minute, each with its time
const fabric = new Fabric($("fabric"));
const transfers = new Transfers();
const problems = new Map();
const tools = new Tools((refused) => tell("change", refused));
let bed = null;
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
  history.links.length = 0;
  document.title = `mrc: ${bed.name}`;
  say($("name"), bed.name);
  say($("title"), bed.title);
  $("bed").hidden = $("tools").hidden = false;
  redraw(null);
});
on("problem", ({ source: of, text }) => tell(of, text));
for (const kind of ["links", "endpoints"]) {
  on(kind, (frame) => {
    const frames = history[kind];
    frame.at = frame.monotonic_ns / 1e9;
    frames.push(frame);
    const first = frames.findIndex((each) => each.at >= frame.at - SECONDS - 1);
    if (first > 32) frames.splice(0, first);
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
  $("state").className = isOpen ? "live" : "lost";
  say($("state"), isOpen ? "live" : "not connected");
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
  const links = history.links.at(-1);
  const endpoints = history.endpoints.at(-1);
  if (bed && links) {
    fabric.show(links);
    tools.show(bed, links);
  }
  if (endpoints) transfers.show(history, endpoints);
  drawChart($("chart"), history, Math.max(links?.at ?? 0, endpoints?.at ?? 0));
}

// ---- mouse and keys ----------------------------------------------------------------------------

function select(target) {
  tools.selected = target;
  fabric.select(target);
  soon();
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
  tools.toggle(target);
});

const ARROWS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

$("fabric").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { key } = event;
  if (key in ARROWS) select(fabric.beside(tools.selected, ...ARROWS[key]));
  else if (key === "Enter" && tools.selected) tools.toggle(tools.selected);
  else if (key === "h" && tools.selected) tools.heal(tools.selected);
  else if (key === "H") tools.heal("all");
  else if (/^[1-9]$/.test(key) && fabric.has(`plane:${key}`)) select(`plane:${key}`);
  else if (key === "z") zoom();
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
