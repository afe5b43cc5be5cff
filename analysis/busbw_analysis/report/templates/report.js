"use strict";
// Interactive extras: tooltips, tables sorted by a click, and highlighting of single curves.

const UNITS = {
  "B": 1, "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30, "TiB": 2 ** 40,
  "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600,
  "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
  "FLOP/s": 1, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12,
};
const NEAR = 28; // pixels: the pointer selects a point within this distance

// --- hover ---------------------------------------------------------------------------------------------------------

const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;
document.body.append(tip);

function nearest(plot, x, y) {
  let found = null;
  let least = NEAR;
  for (const point of plot.querySelectorAll("[data-tip]")) {
    const box = point.getBoundingClientRect();
    const distance = Math.hypot(box.x + box.width / 2 - x, box.y + box.height / 2 - y);
    if (distance < least) {
      least = distance;
      found = { point, box };
    }
  }
  return found;
}

function show(event) {
  const plot = event.target instanceof Element && event.target.closest("svg.plot");
  const found = plot && nearest(plot, event.clientX, event.clientY);
  document.querySelector("use.pointed")?.classList.remove("pointed");
  tip.hidden = !found;
  if (!found) return;
  found.point.classList.add("pointed");
  tip.textContent = found.point.dataset.tip;
  const left = found.box.x + found.box.width / 2 - tip.offsetWidth / 2;
  tip.style.left = `${Math.max(4, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
  const above = found.box.y - tip.offsetHeight - 8;
  tip.style.top = `${above > 4 ? above : found.box.y + found.box.height + 8}px`;
}

document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// Hovering over a legend entry fades all other curves.
for (const figure of document.querySelectorAll("figure")) {
  for (const entry of figure.querySelectorAll("[data-series]")) {
    const others = () => [...figure.querySelectorAll("svg.plot :is(.series, .bars)")].filter(
      (group) => !group.classList.contains(entry.dataset.series),
    );
    const fade = (faded) => () => others().forEach((group) => group.classList.toggle("faded", faded));
    entry.addEventListener("pointerenter", fade(true));
    entry.addEventListener("pointerleave", fade(false));
  }
}

// --- sorted tables -------------------------------------------------------------------------------------------------

function value(cell) {
  const text = cell.textContent.replace(/[\u2007-\u202f]/g, "").replace("−", "-").trim();
  const match = /([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*([A-Za-zµ/]*)/.exec(text);
  return match ? Number(match[1]) * (UNITS[match[2]] ?? 1) : Number.NaN;
}

// Cells without a number come last in both directions.
function compare(one, two, sign) {
  const [a, b] = [value(one), value(two)];
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
}

function sort(table, head) {
  const place = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const numeric = head.classList.contains("number");
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((one, two) => {
    const [a, b] = [one.cells[place], two.cells[place]];
    return numeric ? compare(a, b, sign) : sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  });
  for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  body.append(...rows);
}

for (const table of document.querySelectorAll("table:not(.heat)")) {
  if (table.tBodies[0].rows.length < 2) continue;
  for (const head of table.tHead.rows[table.tHead.rows.length - 1].cells) {
    const button = document.createElement("button");
    button.className = "sort";
    button.setAttribute("aria-label", `sort by ${head.textContent.trim()}`);
    head.append(button);
    head.addEventListener("click", (event) => {
      if (!event.target.closest("a")) sort(table, head);
    });
  }
}
