// SPDX-License-Identifier: Apache-2.0
// What is known of the selected part, and how a click breaks it.

import * as text from "./dom.js";
import { $, html, say } from "./dom.js";
import { targetsOf } from "./fabric.js";

const SHARES = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1];
const AMOUNTS = {
  loss: SHARES,
  rate: SHARES.filter((share) => share >= 0.01 && share < 1).reverse(),
  delay: [50e3, 100e3, 200e3, 500e3, 1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6],
};

export class Tools {
  selected = null;
  #frame = null;
  #bed = null;
  #onChange;
  #timer = 0;

  /** `onChange` is called after a change that was refused, with the reason, or with "". */
  constructor(onChange) {
    this.#onChange = onChange;
    for (const radio of this.#radios()) radio.addEventListener("change", () => this.#chosen());
    $("amount").addEventListener("input", () => this.#moved());
    $("break").addEventListener("click", () => this.break(this.selected));
    $("heal").addEventListener("click", () => this.heal(this.selected));
    $("heal-all").addEventListener("click", () => this.heal("all"));
    this.#chosen();
  }

  #radios() {
    return [...document.querySelectorAll("input[name=how]")];
  }

  get how() {
    return this.#radios().find((radio) => radio.checked).value;
  }

  get #amount() {
    return AMOUNTS[this.how]?.[Number($("amount").value)];
  }

  #chosen() {
    const amounts = AMOUNTS[this.how];
    $("amount").disabled = amounts === undefined;
    if (amounts) {
      $("amount").max = amounts.length - 1;
      $("amount").value = Math.floor(amounts.length * 0.6);
    }
    this.#tellAmount();
  }

  #tellAmount() {
    const amount = this.#amount;
    const share = `${+(amount * 100).toPrecision(3)}%`;
    const shown = this.how === "delay" ? `+${text.time(amount)}` : share;
    say($("amount-text"), amount === undefined ? "" : shown);
  }

  /** The slider also changes a fault that is there. */
  #moved() {
    this.#tellAmount();
    clearTimeout(this.#timer);
    if (this.#frame?.faults[this.selected]) {
      this.#timer = setTimeout(() => this.break(this.selected), 150);
    }
  }

  show(bed, frame) {
    this.#bed = bed;
    this.#frame = frame;
    const delay = this.#radios().find((radio) => radio.value === "delay");
    delay.disabled = !bed.can_delay;
    const lacks = "this kernel lacks netem: use mrc testbed up --fabric emulated";
    delay.parentElement.title = bed.can_delay ? "" : lacks;
    const fault = frame.faults[this.selected];
    say($("part"), this.selected ? text.partName(this.selected) : "no part selected");
    say($("fault"), this.selected ? fault?.text ?? this.#inherited() : " ");
    $("break").disabled = !this.selected || this.how === "select";
    $("heal").disabled = !fault;
    $("heal-all").disabled = Object.keys(frame.faults).length === 0;
    this.#showLoad();
  }

  #links() {
    return this.#bed.links.map((link, index) => ({ ...link, index }))
      .filter((link) => targetsOf(link).includes(this.selected));
  }

  #inherited() {
    const [first] = this.#links();
    const above = first ? targetsOf(first).find((target) => this.#frame.faults[target]) : undefined;
    const isLink = /^(up)?link:/.test(this.selected);
    return isLink && above ? `${text.partName(above)}: ${this.#frame.faults[above].text}` : "";
  }

  #showLoad() {
    const links = this.selected ? this.#links() : [];
    const rows = [];
    const sum = (values, way) =>
      links.reduce((all, { index }) => all + (values[2 * index + way] ?? 0), 0);
    if (links.length) {
      const { seconds, ...frame } = this.#frame;
      const each = (values, way) => (seconds ? `${Math.round(sum(values, way) / seconds)}/s` : "-");
      rows.push(["", "up", "down"]);
      for (const [name, shown] of [
        ["rate", (way) => text.rate(sum(frame.rates_bps, way))],
        ["queue", (way) => text.bytes(sum(frame.queue_bytes, way))],
        ["lost", (way) => each(frame.lost, way)],
        ["dropped", (way) => each(frame.dropped, way)],
        ["trimmed", (way) => each(frame.trimmed, way)],
        ["marked", (way) => each(frame.marked, way)],
      ]) rows.push([name, shown(0), shown(1)]);
    }
    const table = $("load");
    while (table.rows.length > rows.length) table.deleteRow(-1);
    rows.forEach((cells, index) => {
      const row = table.rows[index] ?? table.insertRow();
      cells.forEach((cell, place) => {
        if (!row.cells[place]) row.append(html("td", { class: place ? "n" : "" }));
        say(row.cells[place], cell);
      });
    });
  }

  /** A click on a part. */
  toggle(target) {
    if (this.how === "select") return;
    if (this.#frame?.faults[target]) this.heal(target);
    else this.break(target);
  }

  break(target) {
    const how = this.how;
    const amount = this.#amount;
    const change = { do: "fail", target };
    if (how === "down") change.mode = "down";
    else if (how === "loss") change.loss = amount;
    else if (how === "rate") change.rate_share = amount;
    else if (how === "delay") change.delay_ns = amount;
    if (how !== "select") this.#send(change);
  }

  heal(target) {
    this.#send({ do: "heal", target });
  }

  async #send(change) {
    try {
      const answer = await fetch("change", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(change),
      });
      this.#onChange(answer.ok ? "" : (await answer.json()).error);
    } catch (error) {
      this.#onChange(`not changed: ${error.message}`);
    }
  }
}
