// SPDX-License-Identifier: Apache-2.0
// The table of transfers with the EVs of the selected one, and goodput of the last minute: a band
// for each plane, and when something failed.

import { COLOURS } from "./fabric.js";
import * as text from "./dom.js";
import { $, html, say, set, svg } from "./dom.js";

export const SECONDS = 60;

const MOST = 100; // rows
const NAMED = 6; // EVs of a plane: more are squares without a name
const STATES = ["GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNPROVEN"];

export class Transfers {
  #rows = new Map();
  #selected = null;

  /** Shows the transfers of a frame, and in grey those that ended in the minute before. */
  show(history, frame) {
    const found = new Map(frame.transfers.map((each) => [each.key, each]));
    const ended = new Map();
    for (const past of history.endpoints.filter(({ at }) => at >= frame.at - SECONDS)) {
      for (const each of past.transfers) if (!found.has(each.key)) ended.set(each.key, each);
    }
    const shown = [
      ...[...found.values()].sort((a, b) => order(a, b)),
      ...ended.values(),
    ].slice(0, MOST);
    $("none").hidden = shown.length > 0;
    const keys = new Set(shown.map((each) => each.key));
    for (const [key, row] of this.#rows) {
      if (!keys.has(key)) {
        row.remove();
        this.#rows.delete(key);
      }
    }
    for (const each of shown) this.#row(each, !found.has(each.key), frame.longest_sample_ns);
    const selected = shown.find((each) => each.key === this.#selected) ?? busiest(shown);
    for (const [key, row] of this.#rows) set(row, "aria-selected", key === selected?.key);
    showEvs(selected);
  }

  #row(each, isOver, sample) {
    let row = this.#rows.get(each.key);
    if (!row) {
      row = html("tr", { tabindex: 0 }, ...Array.from({ length: 8 }, (_, i) =>
        html("td", i < 2 ? {} : { class: "n" })));
      row.addEventListener("click", () => { this.#selected = each.key; });
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.#selected = each.key;
      });
      this.#rows.set(each.key, row);
      $("rows").append(row);
    }
    row.classList.toggle("over", isOver);
    const bad = each.evs.filter((ev) => ev.state === "ASSUMED_BAD").length;
    const cells = [
      `${each.source} → ${each.destination}`, each.program,
      isOver ? "ended" : text.rate(each.bits_per_second), text.bytes(each.bytes),
      `${each.longest_gap_ns ? "" : "< "}${tenths(each.longest_gap_ns || 2 * sample)}`,
      text.time(each.rtt_ns), `${each.retransmitted_packets}`,
      each.evs.length ? `${each.evs.length - bad} of ${each.evs.length}` : "-",
    ];
    cells.forEach((cell, index) => say(row.cells[index], cell));
    row.cells[7].classList.toggle("bad", bad > 0);
  }
}

function busiest(shown) {
  return shown.reduce((best, each) => (best?.bytes >= each.bytes ? best : each), undefined);
}

/** Samples show no more than tenths of a second. */
function tenths(ns) {
  return `${(Math.ceil(ns / 1e8) / 10).toFixed(1)} s`;
}

function order(a, b) {
  return a.source.localeCompare(b.source, undefined, { numeric: true })
    || a.destination.localeCompare(b.destination, undefined, { numeric: true })
    || a.key.localeCompare(b.key);
}

function showEvs(transfer) {
  const place = $("evs");
  const rows = transfer?.planes.map((plane) => planeRow(transfer, plane)) ?? [];
  const want = JSON.stringify(transfer ? [transfer.planes, transfer.evs] : null);
  if (place.dataset.shown === want) return;
  place.dataset.shown = want;
  place.replaceChildren(...rows, ...(rows.length ? [legend(transfer)] : []));
}

function planeRow(transfer, plane) {
  const state = plane.suspended ? "suspended" : plane.slow ? "slow" : "up";
  const evs = transfer.evs.filter((ev) => ev.plane === plane.plane);
  const cells = evs.map((ev) => {
    const name = `${ev.path}: ${ev.state}${ev.active ? "" : ", a spare"}, `
      + `${text.rate(ev.bits_per_second)}, RTT ${text.time(ev.rtt_ns)}, ${ev.lost_packets} lost`;
    const kind = `ev ${ev.state}${ev.active ? "" : " spare"}`;
    if (evs.length > NAMED) {
      return html("div", { class: kind, title: name, role: "img", "aria-label": name });
    }
    return html("div", { class: `${kind} named`, title: name },
      `${ev.path}  ${text.rate(ev.bits_per_second)}`);
  });
  return html("div", { class: `evs plane-${(plane.plane - 1) % COLOURS}` },
    html("span", { class: "name" }, `plane ${plane.plane}`),
    html("span", { class: "n" }, text.rate(plane.bits_per_second)),
    html("span", { class: { suspended: "bad", slow: "skip", up: "" }[state] }, state),
    html("div", { class: "cells" }, ...cells));
}

function legend(transfer) {
  if (!transfer.evs.length) {
    return html("p", { class: "legend" }, "the receiver knows no EVs of the sender");
  }
  return html("p", { class: "legend" }, ...STATES.map((state) =>
    html("span", {}, html("i", { class: `ev ${state}` }), state)),
  html("span", {}, html("i", { class: "ev spare" }), "not in rotation"));
}

// ---- Goodput ------------------------------------------------------------------------------------

const LEFT = 74;
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

/** Draws the minute that ends `now`. */
export function drawChart(root, history, now) {
  const width = root.clientWidth || 900;
  const height = root.clientHeight || 240;
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const frames = history.endpoints.filter((frame) => frame.at >= now - SECONDS);
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
  parts.push(...planeNames(planes, width));
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
  const frames = history.links.filter((frame) => frame.at >= now - SECONDS);
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

function planeNames(planes, width) {
  const shown = planes.slice(0, Math.floor((width - 140) / 66));
  return shown.flatMap((plane, index) => {
    const x = width - RIGHT - 66 * (shown.length - index) + 4;
    return [
      svg("rect", { class: `p${(plane - 1) % COLOURS}`, x, y: 5, width: 10, height: 10, rx: 2 }),
      svg("text", { class: "small", x: x + 14, y: 14 }, `plane ${plane}`),
    ];
  });
}
