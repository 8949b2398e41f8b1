// Heat map: requests in flight on each worker over time, a line per worker, the darker the more.

const COLUMN_PX = 3;
const LEVELS = 6; // requests in flight at which the colour is full, at least

// The lines of all lanes as a small picture, one pixel per lane and column.
export function heatMap(store, low, high, axis, lanes, theme) {
  const width = Math.max(1, Math.ceil(axis.width / COLUMN_PX));
  const flight = new Int32Array(lanes * (width + 1)); // changes first, then their sums
  const bad = new Uint8Array(lanes * width);
  const columnOf = (ms) => Math.min(width, Math.max(0, Math.floor(((ms - axis.from) * axis.scale) / COLUMN_PX)));
  for (let at = low; at < high; at++) {
    const lane = store.laneOf[store.worker[at]];
    const [from, to] = [columnOf(store.ms[at]), columnOf(store.endAt(at))];
    if (from === width || store.endAt(at) < axis.from) continue;
    flight[lane * (width + 1) + from] += 1;
    flight[lane * (width + 1) + Math.min(width, to + 1)] -= 1;
    if (store.failed(at)) bad[lane * width + from] = 1;
  }
  let most = LEVELS;
  for (let lane = 0; lane < lanes; lane++) {
    for (let x = 1, place = lane * (width + 1) + 1; x < width; x++, place++) most = Math.max(most, (flight[place] += flight[place - 1]));
  }
  return picture(flight, bad, width, lanes, most, [theme.decode, theme.bad].map(channels));
}

function picture(flight, bad, width, lanes, most, [colour, failed]) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, lanes];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, lanes);
  for (let lane = 0, place = 0; lane < lanes; lane++) {
    for (let x = 0; x < width; x++, place++) {
      const value = flight[lane * (width + 1) + x];
      if (!value && !bad[place]) continue;
      image.data.set(bad[place] ? failed : colour, 4 * place);
      image.data[4 * place + 3] = bad[place] ? 255 : 40 + Math.round((215 * Math.min(value, most)) / most);
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

export function drawHeat(pen, map, axis, { from, to }, top, height) {
  pen.imageSmoothingEnabled = false;
  pen.drawImage(map, 0, from, map.width, to - from, axis.left, top, map.width * COLUMN_PX, height);
}
