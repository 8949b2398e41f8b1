// Where a time stands on a line of pixels, and which times to write there.

import { clock, day, zoneMs } from "./format.js";

const DAY_MS = 86_400_000;
const STEPS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, DAY_MS,
];
const LABEL_PX = 86;

export class Axis {
  constructor(from, to, left, width) {
    this.from = from;
    this.to = to;
    this.left = left;
    this.width = width;
    this.scale = width / Math.max(1, to - from);
  }

  x(ms) {
    return this.left + (ms - this.from) * this.scale;
  }

  ms(x) {
    return this.from + (x - this.left) / this.scale;
  }

  ticks() {
    const fewest = (this.to - this.from) * (LABEL_PX / this.width);
    const step = STEPS_MS.find((each) => each >= fewest) ?? Math.ceil(fewest / DAY_MS) * DAY_MS;
    const ahead = zoneMs(this.from);
    const found = [];
    for (let ms = Math.ceil((this.from + ahead) / step) * step - ahead; ms <= this.to; ms += step) {
      found.push([ms, (ms + ahead) % DAY_MS ? clock(ms, step < 1000 ? 3 : 0) : day(ms)]);
    }
    return found;
  }
}
