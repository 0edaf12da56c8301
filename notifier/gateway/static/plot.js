/* The latency of every notification of the last minute, on a logarithmic scale. */
"use strict";

class Plot {
  static SPAN_MS = 60000;
  static LOW_MS = 0.5;
  static HIGH_MS = 120000;
  static LATE_MS = 1000;  // whoever took longer waited: for the limit, or for a server

  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.dots = [];
    this.ahead = 0;  // of the server's clock, ms
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    let last = 0;
    const draw = now => {
      if (now - last > (calm.matches ? 1000 : 50)) { last = now; this.draw(); }
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  add(dots) {
    if (dots.length) this.ahead = dots[dots.length - 1][0] - Date.now();
    this.dots.push(...dots);
    const from = this.now() - Plot.SPAN_MS;
    let old = 0;
    while (old < this.dots.length && (this.dots[old][0] < from || this.dots.length - old > 8000)) old++;
    this.dots.splice(0, old);
  }

  now() { return Date.now() + this.ahead; }

  /* Of what went at once in the last ten seconds: how many per second, median, 99th percentile (ms). */
  figures() {
    const from = this.now() - 10000;
    const recent = this.dots.filter(dot => dot[0] >= from);
    const took = recent.map(dot => dot[1]).filter(ms => ms < Plot.LATE_MS).sort((a, b) => a - b);
    const at = share => took.length ? took[Math.min(took.length - 1, Math.floor(took.length * share))] : null;
    return { rate: recent.length / 10, p50: at(0.5), p99: at(0.99) };
  }

  draw() {
    const { canvas, context } = this, scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas), colour = name => style.getPropertyValue(name).trim();
    const left = 56, bottom = height - 20, right = width - 8, top = 8;
    const decades = Math.log10(Plot.HIGH_MS / Plot.LOW_MS);
    const y = ms => bottom - (bottom - top) * Math.log10(Math.max(ms, Plot.LOW_MS) / Plot.LOW_MS) / decades;
    const now = this.now(), x = ms => right - (right - left) * (now - ms) / Plot.SPAN_MS;

    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (const [ms, name] of [[1, "1 ms"], [10, "10 ms"], [100, "100 ms"], [1000, "1 s"], [10000, "10 s"], [100000, "100 s"]]) {
      context.strokeStyle = colour("--line");
      context.beginPath();
      context.moveTo(left, y(ms));
      context.lineTo(right, y(ms));
      context.stroke();
      context.fillStyle = colour("--soft");
      context.textAlign = "right";
      context.fillText(name, left - 6, y(ms));
    }
    context.textAlign = "center";
    for (const ago of [60, 40, 20]) {
      context.fillText(`${ago} s ago`, Math.max(x(now - ago * 1000), left + 24), height - 8);
    }
    context.textAlign = "right";
    context.fillText("now", right, height - 8);

    const fresh = colour("--fresh"), late = colour("--late");
    context.globalAlpha = 0.65;
    for (const [at, took] of this.dots) {
      const px = x(at), py = y(took);
      if (px < left) continue;
      if (took < Plot.LATE_MS) {
        context.fillStyle = fresh;
        context.beginPath();
        context.arc(px, py, 2.5, 0, 7);
        context.fill();
      } else {  // a shape of its own: colour alone says nothing to some
        context.strokeStyle = late;
        context.lineWidth = 1.5;
        context.strokeRect(px - 2.5, py - 2.5, 5, 5);
      }
    }
    context.globalAlpha = 1;
  }
}
