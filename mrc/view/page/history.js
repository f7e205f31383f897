// SPDX-License-Identifier: Apache-2.0
// The last minute of what the server told, so that it can be seen again.

export const SECONDS = 60;

export class History {
  #frames = { links: [], endpoints: [] };

  /** Adds what happened; `kind` is links or endpoints. */
  add(kind, frame) {
    const frames = this.#frames[kind];
    frame.at = frame.monotonic_ns / 1e9;
    frames.push(frame);
    const first = frames.findIndex((each) => each.at >= frame.at - SECONDS - 1);
    if (first > 32) frames.splice(0, first);
  }

  all(kind) {
    return this.#frames[kind];
  }

  /** The newest time, in seconds of the server's clock. */
  get now() {
    const last = Object.values(this.#frames).map((frames) => frames.at(-1)?.at ?? 0);
    return Math.max(...last);
  }

  /** The frame that was shown at a time; undefined before the first. */
  at(kind, time) {
    const frames = this.#frames[kind];
    let low = 0;
    let high = frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (frames[middle].at <= time) low = middle + 1;
      else high = middle;
    }
    return frames[low - 1];
  }

  clear(kind) {
    this.#frames[kind].length = 0;
  }
}
