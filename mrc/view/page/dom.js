// SPDX-License-Identifier: Apache-2.0
// Makes elements, and numbers with their units. Text is always text: names come from other
// programs.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Sets an attribute only if it changes, since each change costs a style computation. */
export function set(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ---- Numbers with their units, and names of parts -----------------------------------------------

function scaled(value, step, units) {
  let index = 0;
  while (value >= step && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  const shown = value >= 100 || index === 0 ? Math.round(value) : value.toPrecision(3);
  return `${shown} ${units[index]}`;
}

export function rate(bitsPerSecond) {
  return scaled(bitsPerSecond, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
}

export function bytes(count) {
  return scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

export function time(ns) {
  if (ns === null) return "-";
  if (ns < 1e6) return `${Math.round(ns / 1e3)} us`;
  return ns < 1e9 ? `${(ns / 1e6).toPrecision(3)} ms` : `${(ns / 1e9).toFixed(1)} s`;
}

/** The name of a part for people. */
export function partName(target) {
  const [kind, rest] = target.split(":");
  const numbers = rest.match(/\d+/g);
  switch (kind) {
    case "plane": return `plane ${numbers[0]}`;
    case "t0": case "t1": case "t2":
      return `${kind.toUpperCase()} ${numbers[1]} of plane ${numbers[0]}`;
    case "link": return `link of h${numbers[0]} in plane ${numbers[1]}`;
    case "core": return `link T1 ${numbers[1]} to T2 ${numbers[2]} of plane ${numbers[0]}`;
    default: return `uplink T0 ${numbers[1]} to T1 ${numbers[2]} of plane ${numbers[0]}`;
  }
}

/** The plane of a part. */
export function planeOf(target) {
  const [, plane] = /(?:plane:|t[012]:|uplink:|core:|link:h\d+\.)(\d+)/.exec(target);
  return Number(plane);
}
