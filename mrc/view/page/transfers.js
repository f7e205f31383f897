// SPDX-License-Identifier: Apache-2.0
// The table of transfers, and the EVs of the selected one.

import { COLOURS } from "./fabric.js";
import { $, html, say, set } from "./dom.js";
import * as text from "./text.js";

const MOST = 100; // rows
const NAMED = 6; // EVs of a plane: more are squares without a name
const KEPT_SECONDS = 60; // rows of transfers that have ended
const STATES = ["GOOD", "SKIP", "ASSUMED_BAD", "DENIED"];

export class Transfers {
  #rows = new Map();
  #selected = null;

  /** Shows the transfers of a frame, and in grey those that ended in the minute before. */
  show(history, frame) {
    const found = new Map(frame.transfers.map((each) => [each.key, each]));
    const ended = new Map();
    for (const past of history.all("endpoints")) {
      if (past.at > frame.at || past.at < frame.at - KEPT_SECONDS) continue;
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
