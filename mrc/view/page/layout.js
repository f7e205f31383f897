// SPDX-License-Identifier: Apache-2.0
// Where the parts of a fabric are: a panel for each plane, with T2s above T1s above T0s above hosts. Pure.

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
export function layout(bed, width, only) {
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
  const found = { width, panels: [], nodes: [], links: [], joined };
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
        kind, number, plane: panel.plane, width, height: BOX,
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
