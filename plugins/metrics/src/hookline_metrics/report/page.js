// Under the pointer: a line through the chart, and the value of each curve nearest to it. Arrow keys move it too.
const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
const tip = document.createElement("div");
line.setAttribute("class", "pointer");
tip.className = "tip";
for (const overlay of [line, tip]) overlay.dataset.overlay = "";

function nearest(points, x) {
  return points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
}

function show(chart, x) {
  const curves = JSON.parse(chart.dataset.curves).filter((curve) => curve.points.length);
  if (!curves.length) return;
  const near = curves.map((curve) => [curve, nearest(curve.points, x)]);
  const place = nearest(near.map(([, point]) => point), x);
  const view = chart.viewBox.baseVal;
  line.setAttribute("x1", place[0]);
  line.setAttribute("x2", place[0]);
  line.setAttribute("y1", 12);
  line.setAttribute("y2", view.height - 36);
  chart.append(line);
  tip.replaceChildren(`${chart.dataset.x} ${place[2]}`);
  for (const [curve, point] of near) {
    const row = document.createElement("div");
    const mark = document.createElement("i");
    mark.className = `c${curve.colour}`;
    row.append(mark, curves.length > 1 ? `${curve.label} ${point[3]}` : point[3]);
    tip.append(row);
  }
  const card = chart.closest(".card");
  const box = chart.getBoundingClientRect();
  card.append(tip);
  const left = box.left - card.getBoundingClientRect().left + (place[0] / view.width) * box.width;
  tip.style.left = `${left > box.width / 2 ? Math.max(0, left - tip.offsetWidth - 14) : left + 14}px`;
  tip.style.top = "44px";
}

function hide() {
  line.remove();
  tip.remove();
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.("svg.chart");
  if (!chart) return hide();
  const box = chart.getBoundingClientRect();
  show(chart, ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width);
});
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !event.target.matches?.("svg.chart")) return;
  event.preventDefault();
  const places = JSON.parse(event.target.dataset.curves).flatMap((curve) => curve.points.map((point) => point[0]));
  const from = line.parentNode === event.target ? Number(line.getAttribute("x1")) : step > 0 ? -1 : Infinity;
  const onward = places.filter((x) => (x - from) * step > 0);
  if (onward.length) show(event.target, step > 0 ? Math.min(...onward) : Math.max(...onward));
});
