// SPDX-License-Identifier: Apache-2.0
// Saves the pictures that are seen, one below the other, as SVG or PNG.

import { svg } from "./dom.js";

const GAP = 16;
const HEAD = 34;

async function picture(title, roots, isPng) {
  const style = await (await fetch("picture.css")).text();
  const seen = roots.filter((root) => root.clientWidth > 0);
  const inner = Math.max(...seen.map((root) => root.clientWidth));
  const heightOf = (root) => (root.clientHeight * inner) / root.clientWidth;
  const width = inner + 2 * GAP;
  const height = seen.reduce((sum, root) => sum + heightOf(root) + GAP, HEAD);
  const whole = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`,
    class: "picture",
  });
  const sheet = svg("style");
  sheet.textContent = isPng ? themed(style) : style;
  whole.append(
    sheet,
    svg("rect", { width, height, fill: "var(--paper)" }),
    svg("text", { x: GAP, y: 22, class: "bold" }, title),
  );
  let y = HEAD;
  for (const root of seen) {
    const copy = root.cloneNode(true);
    for (const name of ["id", "tabindex", "role", "class"]) copy.removeAttribute(name);
    for (const each of copy.querySelectorAll("[data-zoom], .hit, title")) each.remove();
    for (const each of copy.querySelectorAll("[role]")) {
      for (const name of ["id", "role", "aria-label", "data-target"]) each.removeAttribute(name);
    }
    const place = { x: GAP, y, width: inner, height: heightOf(root) };
    for (const [name, value] of Object.entries(place)) copy.setAttribute(name, value);
    whole.append(copy);
    y += heightOf(root) + GAP;
  }
  return { text: new XMLSerializer().serializeToString(whole), width, height };
}

/** The style with only the theme that the page has now. */
function themed(style) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return style.replace("(prefers-color-scheme: dark)", dark ? "all" : "not all");
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export async function saveSvg(name, title, roots) {
  const { text } = await picture(title, roots, false);
  download(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
}

export async function savePng(name, title, roots) {
  const { text, width, height } = await picture(title, roots, true);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * width;
    canvas.height = 2 * height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => { canvas.toBlob(resolve); });
    download(blob, `${name}.png`);
  } finally {
    URL.revokeObjectURL(address);
  }
}
