// SPDX-License-Identifier: Apache-2.0
// Goodput of the last minute: a band for each plane, and when something failed.

import { svg } from "./dom.js";
import { COLOURS } from "./fabric.js";
import { SECONDS } from "./history.js";
import * as text from "./text.js";

const LEFT = 74; // page.css aligns the slider with both
const RIGHT = 14;
const TOP = 66;
const BOTTOM = 24;
const NAMES = 3; // rows of names of faults; where they are full, a fault has no name
const LETTER = 6.6;

/** The sum of all transfers at one time, by plane. */
function byPlane(frame) {
  const found = new Map();
  for (const transfer of frame.transfers) {
    const sent = transfer.planes.reduce((sum, plane) => sum + plane.bits_per_second, 0);
    // Retransmissions count as sent: scaled to what arrived.
    const scale = sent > 0 ? Math.min(1, transfer.bits_per_second / sent) : 0;
    for (const { plane, bits_per_second: rate } of transfer.planes) {
      found.set(plane, (found.get(plane) ?? 0) + rate * scale);
    }
  }
  return found;
}

function step(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [0.2, 0.5, 1, 2].map((factor) => factor * power).find((each) => most / each <= 5) ?? power;
}

/** Draws the minute that ends `now`; `shown` is the time of the cursor, or null. */
export function draw(root, history, now, shown) {
  const width = root.clientWidth || 900;
  const height = root.clientHeight || 240;
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const frames = history.all("endpoints").filter((frame) => frame.at >= now - SECONDS);
  const sums = frames.map(byPlane);
  const totals = frames.map(({ transfers }) =>
    transfers.reduce((sum, each) => sum + each.bits_per_second, 0));
  const most = Math.max(1e6, ...totals) * 1.05;
  const x = (at) => LEFT + ((at - now + SECONDS) / SECONDS) * (width - LEFT - RIGHT);
  const y = (rate) => height - BOTTOM - (rate / most) * (height - TOP - BOTTOM);
  const parts = [...faults(history, x, now, height), ...axes(x, y, now, most, width, height)];
  const planes = [...new Set(sums.flatMap((sum) => [...sum.keys()]))].sort((a, b) => a - b);
  const base = frames.map(() => 0);
  for (const plane of planes) {
    const points = [];
    const back = [];
    frames.forEach((frame, index) => {
      back.push(`${x(frame.at).toFixed(1)},${y(base[index]).toFixed(1)}`);
      base[index] += sums[index].get(plane) ?? 0;
      points.push(`${x(frame.at).toFixed(1)},${y(base[index]).toFixed(1)}`);
    });
    const outline = [...points, ...back.reverse()].join(" ");
    parts.push(svg("polygon", { class: `band p${(plane - 1) % COLOURS}`, points: outline }));
  }
  const line = frames.map(({ at }, index) => `${x(at).toFixed(1)},${y(totals[index]).toFixed(1)}`);
  if (line.length > 1) parts.push(svg("polyline", { class: "total", points: line.join(" ") }));
  parts.push(...legend(planes, width));
  if (shown !== null) {
    const ends = { x1: x(shown), x2: x(shown), y1: TOP, y2: height - BOTTOM };
    parts.push(svg("line", { class: "cursor", ...ends }));
  }
  root.replaceChildren(...parts);
}

function axes(x, y, now, most, width, height) {
  const parts = [svg("text", { x: 4, y: 14, class: "bold" }, "goodput")];
  const unit = step(most);
  for (let rate = 0; rate <= most; rate += unit) {
    const label = rate ? text.rate(rate) : "0";
    parts.push(
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(rate), y2: y(rate) }),
      svg("text", { class: "small end", x: LEFT - 8, y: y(rate) + 4 }, label),
    );
  }
  for (let ago = SECONDS; ago >= 0; ago -= 10) {
    const label = ago ? `-${ago} s` : "now";
    parts.push(svg("text", { class: "small middle", x: x(now - ago), y: height - 6 }, label));
  }
  return parts;
}

function faults(history, x, now, height) {
  const spans = [];
  const open = new Map();
  const frames = history.all("links").filter((frame) => frame.at >= now - SECONDS);
  for (const frame of frames) {
    for (const target of Object.keys(frame.faults)) {
      if (!open.has(target)) open.set(target, { target, from: frame.at });
    }
    for (const [target, span] of open) {
      span.to = frame.at;
      if (!(target in frame.faults)) {
        spans.push(span);
        open.delete(target);
      }
    }
  }
  spans.push(...open.values());
  const ends = Array(NAMES).fill(0); // of the names in each row
  return spans.sort((a, b) => a.from - b.from).flatMap(({ target, from, to }) => {
    const begin = x(from);
    const wide = Math.max(1.5, x(to) - begin);
    const length = target.length * LETTER;
    const start = Math.min(begin, x(now) - length);
    const row = ends.findIndex((end) => end <= start);
    const shown = [
      svg("rect", { class: "when", x: begin, y: TOP, width: wide, height: height - TOP - BOTTOM }),
      svg("rect", { class: "bar", x: begin, y: TOP - 4, width: wide, height: 3 }),
    ];
    if (row >= 0) {
      ends[row] = start + length + LETTER;
      shown.push(svg("text", { class: "bar-name", x: start, y: TOP - 8 - 13 * row }, target));
    }
    return shown;
  });
}

function legend(planes, width) {
  const shown = planes.slice(0, Math.floor((width - 140) / 66));
  return shown.flatMap((plane, index) => {
    const x = width - RIGHT - 66 * (shown.length - index) + 4;
    return [
      svg("rect", { class: `p${(plane - 1) % COLOURS}`, x, y: 5, width: 10, height: 10, rx: 2 }),
      svg("text", { class: "small", x: x + 14, y: 14 }, `plane ${plane}`),
    ];
  });
}
