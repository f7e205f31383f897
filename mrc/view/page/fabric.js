// SPDX-License-Identifier: Apache-2.0
// Draws the fabric once, then changes what a frame changes.

import * as text from "./dom.js";
import { say, set, svg } from "./dom.js";

const HALF_LETTER = 3.7; // of a label
const THIN = 1.2; // an idle link
const LANE = 2.6; // half the distance of the two directions of a link
export const COLOURS = 8; // of planes
const QUIET = 10000; // bit/s: the kernel's own traffic stays below

/** Where a fault acts on a link: on itself, one direction, a switch, or the plane. */
export function targetsOf(link) {
  const switches = ["t0", "t1", "t2"].filter((kind) => link[kind] !== null)
    .map((kind) => `${kind}:${link.plane}.${link[kind]}`);
  return [link.target, link.up, link.down, ...switches, `plane:${link.plane}`];
}

function classOf(fault) {
  if (fault.mode === "down") return "down";
  if (fault.loss >= 1) return "silent";
  if (fault.loss > 0 || fault.mtu !== null) return "lossy";
  return fault.rate_share === null && fault.delay_ns > 0 ? "late" : "slow";
}

const WORST = ["down", "silent", "lossy", "slow", "late"];

export class Fabric {
  #root;
  #bed = null;
  #only = null;
  #groups = new Map(); // target -> its elements
  #lines = [];
  #rates = new Map(); // plane -> its text
  #panels = new Map(); // plane -> its panel
  #middles = new Map(); // target of a link or switch -> where its fault is named
  #labels = new Map(); // failing target -> that name
  #unknown = new Set(); // places that were not measured
  #order = []; // rows of targets, for the arrow keys

  constructor(root) {
    this.#root = root;
  }

  get only() {
    return this.#only;
  }

  draw(bed, width, only) {
    this.#bed = bed;
    this.#only = only;
    const found = layout(bed, width, only);
    this.#groups.clear();
    this.#rates.clear();
    this.#middles.clear();
    this.#labels.clear();
    this.#lines = [];
    this.#root.replaceChildren();
    set(this.#root, "viewBox", `-1 -1 ${found.width + 2} ${found.height + 2}`);
    this.#panels = new Map(found.panels.map((panel) => [panel.plane, panel]));
    for (const panel of found.panels) this.#panel(panel);
    for (const link of found.links) this.#link(link);
    for (const node of found.nodes) this.#node(node);
    this.#order = rowsOf(found);
  }

  #group(target, name, kind, parent = this.#root) {
    const label = { "data-target": target, class: kind, role: "option", "aria-label": name };
    const made = svg("g", label, svg("title", {}, name));
    parent.append(made);
    if (!this.#groups.has(target)) {
      made.id = `part-${target.replace(/\W/g, "-")}`;
      this.#groups.set(target, []);
    }
    this.#groups.get(target).push(made);
    return made;
  }

  #panel(panel) {
    const { x, y, width, height, plane } = panel;
    const group = this.#group(`plane:${plane}`, text.partName(`plane:${plane}`), "plane");
    const rate = svg("text", { x: x + width - 30, y: y + 19, class: "small end" });
    const trouble = svg("text", { x: x + 28, y: y + 35, class: "small warn" });
    const corner = { x: x + width - 25, y: y + 6, width: 18, height: 18, rx: 4 };
    const sign = svg("rect", { class: "sign", ...corner });
    const mark = this.#only === null ? "+" : "\u2212";
    const zoom = svg("text", { x: x + width - 16, y: y + 19, class: "middle" }, mark);
    group.append(
      svg("rect", { class: "panel", x, y, width, height, rx: 8 }),
      svg("rect", {
        class: `p${(plane - 1) % COLOURS}`, x: x + 12, y: y + 10, width: 10, height: 10, rx: 2,
      }),
      svg("text", { x: x + 28, y: y + 19, class: "bold" }, `plane ${plane}`),
      rate,
      trouble,
      svg("g", { "data-zoom": plane }, svg("title", {}, "one plane, or all (z)"), sign, zoom),
    );
    for (const bus of panel.buses) {
      const ends = { x1: x + 12, x2: x + width - 12, y1: bus, y2: bus };
      group.append(svg("line", { class: "lane", ...ends }));
    }
    this.#rates.set(plane, { rate, trouble });
  }

  #node({ target, kind, x, y, width, height, label }) {
    const group = this.#group(target, text.partName(target), `node ${kind}`);
    group.append(svg("rect", { class: "box", x, y, width, height, rx: Math.min(4, width / 3) }));
    if (kind !== "host") this.#middles.set(target, { x: x + width / 2, y: y - 5 });
    if (label) {
      group.append(svg("text", { x: x + width / 2, y: y + 15.5, class: "middle" }, label));
    }
  }

  #link(link) {
    const { x1, y1, x2, y2 } = link;
    const group = this.#group(link.target, text.partName(link.target), "link");
    for (const target of [link.target, link.up, link.down].filter(Boolean)) {
      this.#middles.set(target, { x: 0.65 * x1 + 0.35 * x2, y: 0.65 * y1 + 0.35 * y2 + 4 });
    }
    const length = Math.hypot(x2 - x1, y2 - y1);
    const across = { x: (LANE * (y1 - y2)) / length, y: (LANE * (x2 - x1)) / length };
    group.append(svg("line", { class: "hit", x1, y1, x2, y2 }));
    const members = link.members ?? [link];
    const ways = link.lanes ? [[0, -1], [1, 1]] : [[null, 0]];
    for (const [way, side] of ways) {
      const dx = across.x * side;
      const dy = across.y * side;
      const ends = { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy };
      const line = svg("line", { class: "lane", ...ends });
      group.append(line);
      this.#lines.push({ line, group, members, way });
    }
  }

  /** Shows a frame; `most` is the highest rate of links without a limit. */
  show(frame) {
    const most = Math.max(1e6, ...frame.rates_bps);
    this.#unknown = new Set(frame.unknown);
    for (const each of this.#lines) this.#showLine(each, frame, most);
    for (const [target, groups] of this.#groups) {
      const fault = frame.faults[target];
      for (const group of groups) {
        group.classList.toggle("fails", fault !== undefined);
      }
      set(groups[0], "aria-label", text.partName(target) + (fault ? `, fails: ${fault.text}` : ""));
    }
    for (const [plane, lines] of this.#rates) this.#showPlane(plane, lines, frame);
    this.#showLabels(frame.faults);
  }

  #showLabels(faults) {
    for (const [target, label] of this.#labels) {
      if (target in faults) continue;
      label.remove();
      this.#labels.delete(target);
    }
    for (const [target, fault] of Object.entries(faults)) {
      const middle = this.#middles.get(target);
      if (!middle) continue;
      if (!this.#labels.has(target)) {
        const label = svg("text", { class: "label middle", y: middle.y });
        this.#labels.set(target, label);
        this.#root.append(label);
      }
      const label = this.#labels.get(target);
      const half = fault.text.length * HALF_LETTER;
      const { x, width } = this.#panels.get(text.planeOf(target));
      set(label, "x", Math.min(Math.max(middle.x, x + half), x + width - half).toFixed(1));
      say(label, fault.text);
    }
  }

  #showLine({ line, members, way }, frame, most) {
    let share = 0;
    let hurt = false;
    let worst = 9;
    let unknown = false;
    for (const link of members) {
      for (const direction of way === null ? [0, 1] : [way]) {
        const place = 2 * link.index + direction;
        const limit = frame.limits_bps[place] ?? link.rates_bps[direction] ?? most;
        const moved = frame.rates_bps[place] > QUIET ? frame.rates_bps[place] / limit : 0;
        share = members.length > 1 ? share + moved / members.length : Math.max(share, moved);
        hurt ||= place in frame.dropped || place in frame.trimmed;
        unknown ||= this.#unknown.has(place);
        const name = direction === 0 ? link.up : link.down;
        for (const target of targetsOf(link)) {
          const other = target.includes(">") && target !== name;
          const fault = other ? undefined : frame.faults[target];
          if (fault) worst = Math.min(worst, WORST.indexOf(classOf(fault)));
        }
      }
    }
    const state = WORST[worst] ?? (unknown ? "unknown" : hurt ? "drops" : share > 0 ? "busy" : "");
    set(line, "class", `lane ${state}`.trim());
    const wide = way === null ? 5 : 4;
    const load = Math.min(1, share);
    set(line, "stroke-opacity", worst < 9 || load === 0 ? 1 : (0.35 + 0.65 * load).toFixed(2));
    const width = THIN + (wide - THIN) * (worst < 9 ? Math.max(0.25, load) : load);
    line.style.strokeWidth = width > THIN ? width.toFixed(1) : "";
  }

  #showPlane(plane, lines, frame) {
    const fault = frame.faults[`plane:${plane}`];
    let rate = 0;
    let drops = 0;
    for (const [index, link] of this.#bed.links.entries()) {
      if (link.plane !== plane) continue;
      if (link.host !== null) rate += frame.rates_bps[2 * index];
      for (const place of [2 * index, 2 * index + 1]) {
        drops += (frame.lost[place] ?? 0) + (frame.dropped[place] ?? 0);
      }
    }
    const troubles = fault ? [fault.text] : [];
    if (drops && frame.seconds) troubles.push(`${Math.round(drops / frame.seconds)} lost/s`);
    say(lines.rate, rate > QUIET ? text.rate(rate) : "idle");
    say(lines.trouble, troubles.join(", "));
  }

  select(target) {
    const before = this.#root.querySelectorAll(".selected");
    for (const group of before) group.classList.remove("selected");
    const groups = this.#groups.get(target) ?? [];
    for (const group of groups) group.classList.add("selected");
    if (groups.length) this.#root.setAttribute("aria-activedescendant", groups[0].id);
    else this.#root.removeAttribute("aria-activedescendant");
  }

  has(target) {
    return this.#groups.has(target);
  }

  /** The part beside another one: `across` in its row, or `down` in the next row. */
  beside(target, across, down) {
    const rows = this.#order;
    let row = rows.findIndex((each) => each.some((part) => part.target === target));
    if (row < 0) return rows[0]?.[0]?.target ?? null;
    const place = rows[row].findIndex((part) => part.target === target);
    if (across) return (rows[row][place + across] ?? rows[row][place]).target;
    const x = rows[row][place].x;
    row = Math.min(rows.length - 1, Math.max(0, row + down));
    const near = (part) => Math.abs(part.x - x);
    return rows[row].reduce((best, part) => (near(part) < near(best) ? part : best)).target;
  }
}

/** All parts in rows from top to bottom, each from left to right. */
function rowsOf(found) {
  const parts = [
    ...found.panels.map(({ plane, x, y, width }) => ({
      target: `plane:${plane}`, x: x + width / 2, y,
    })),
    ...found.nodes.filter((node) => node.kind !== "host")
      .map(({ target, x, y, width }) => ({ target, x: x + width / 2, y })),
    ...found.links.filter((link) => !link.members)
      .map(({ target, x1, y1, x2, y2 }) => ({ target, x: (x1 + x2) / 2, y: (y1 + y2) / 2 })),
  ];
  const rows = new Map();
  for (const part of parts) {
    const y = Math.round(part.y);
    if (!rows.has(y)) rows.set(y, []);
    rows.get(y).push(part);
  }
  return [...rows.entries()].sort(([a], [b]) => a - b)
    .map(([, row]) => row.sort((a, b) => a.x - b.x));
}

// ---- Where the parts are: a panel for each plane, with T2s above T1s above T0s above hosts -------

const GAP = 12;
const PAD = 12;
const HEAD = 46;
const BOX = 22;
const MANY_UPLINKS = 800; // more are drawn as one line for each switch
const MANY_LINKS = 30; // of a plane: more have one line for both directions

const TIERS = ["host", "t0", "t1", "t2"];

const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
const pairs = (kinds) => kinds.slice(1).map((upper, index) => [kinds[index], upper]);

/** Places everything in this width; `only` one plane, or all if it is null. */
function layout(bed, width, only) {
  const planes = only === null ? sorted(bed.links.map((link) => link.plane)) : [only];
  const uplinks = bed.links.filter((link) => link.t1 !== null && planes.includes(link.plane));
  const joined = uplinks.length > MANY_UPLINKS;
  const widest = Math.max(
    ...TIERS.map((kind) => sorted(bed.links.map((link) => link[kind] ?? 0)).length),
  );
  const least = Math.min(Math.max(widest * 24 + 2 * PAD, 220), 440);
  const fit = Math.max(1, Math.min(planes.length, Math.floor((width + GAP) / (least + GAP))));
  const columns = Math.ceil(planes.length / Math.ceil(planes.length / fit));
  const panelWidth = (width - GAP * (columns - 1)) / columns;
  const rows = Math.ceil(planes.length / columns);
  const row = only !== null ? 190 : joined ? 52 : { 1: 150, 2: 96 }[rows] ?? 64;
  const tiers = TIERS.filter((kind) => bed.links.some((link) => link[kind] !== null));
  const panelHeight = HEAD + (tiers.length - 1) * row + BOX + PAD;
  const found = { width, panels: [], nodes: [], links: [] };
  planes.forEach((plane, index) => {
    const x = (index % columns) * (panelWidth + GAP);
    const y = Math.floor(index / columns) * (panelHeight + GAP);
    const panel = { plane, x, y, width: panelWidth, height: panelHeight, buses: [] };
    found.panels.push(panel);
    place(bed, panel, tiers, row, joined, found);
  });
  found.height = rows * (panelHeight + GAP) - GAP;
  return found;
}

function place(bed, panel, tiers, row, joined, found) {
  const own = bed.links.map((link, index) => ({ ...link, index }))
    .filter((link) => link.plane === panel.plane);
  const at = {};
  const top = (kind) => panel.y + HEAD + (tiers.length - 1 - tiers.indexOf(kind)) * row;
  for (const kind of tiers) {
    const every = sorted(bed.links.filter((link) => link[kind] !== null).map((link) => link[kind]));
    const step = (panel.width - 2 * PAD) / every.length;
    const width = Math.min(50, step * (step > 12 ? 0.8 : 0.9));
    at[kind] = (number) => panel.x + PAD + step * (every.indexOf(number) + 0.5);
    for (const number of sorted(own.filter((link) => link[kind] !== null).map((l) => l[kind]))) {
      found.nodes.push({
        kind, width, height: BOX,
        x: at[kind](number) - width / 2,
        y: top(kind),
        target: nameOf(kind, panel.plane, number),
        label: shortName(kind, number, width, every.at(-1)),
      });
    }
  }
  const lanes = own.length <= MANY_LINKS;
  for (const link of own) {
    const [lower, upper] = tiers.filter((kind) => link[kind] !== null);
    if (lower !== "host" && joined) continue;
    found.links.push({
      ...link, lanes,
      x1: at[lower](link[lower]), y1: top(lower),
      x2: at[upper](link[upper]), y2: top(upper) + BOX,
    });
  }
  for (const [lower, upper] of joined ? pairs(tiers.slice(1)) : []) {
    join(own, lower, upper, at, top, panel, found);
  }
}

/** One line for all links of a switch to another tier: to a bus between the tiers. */
function join(own, lower, upper, at, top, panel, found) {
  const bus = (top(upper) + BOX + top(lower)) / 2;
  for (const [kind, y] of [[upper, top(upper) + BOX], [lower, top(lower)]]) {
    const members = new Map();
    for (const link of own.filter((each) => each[lower] !== null && each[upper] !== null)) {
      if (!members.has(link[kind])) members.set(link[kind], []);
      members.get(link[kind]).push(link);
    }
    for (const [number, links] of members) {
      found.links.push({
        target: nameOf(kind, panel.plane, number), plane: panel.plane, members: links, lanes: false,
        x1: at[kind](number), y1: Math.max(y, bus), x2: at[kind](number), y2: Math.min(y, bus),
      });
    }
  }
  panel.buses.push(bus);
}

/** A host in a plane is its port there, which fails with its link. */
function nameOf(kind, plane, number) {
  return kind === "host" ? `link:h${number}.${plane}` : `${kind}:${plane}.${number}`;
}

/** All of a tier have long names, or all have short ones, or none has one. */
function shortName(kind, number, width, largest) {
  const name = (each) => (kind === "host" ? `h${each}` : `${kind.toUpperCase()} ${each}`);
  if (width >= name(largest).length * 7) return name(number);
  return width >= String(largest).length * 8 ? String(number) : "";
}
