// A canvas as large as its parent, in the pixels of the screen.

export function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`; // by the style's own interface: the page's policy allows no other
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// Many rectangles of one colour cost one call.
export class Brush {
  constructor(pen) {
    this.pen = pen;
    this.paths = new Map();
  }

  rect(colour, x, y, width, height) {
    let path = this.paths.get(colour);
    if (!path) this.paths.set(colour, (path = new Path2D()));
    path.rect(x, y, width, height);
  }

  paint() {
    for (const [colour, path] of this.paths) {
      this.pen.fillStyle = colour;
      this.pen.fill(path);
    }
  }
}

export function shorten(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}
