// Under the pointer: a line through the chart, and the value of each curve nearest to it.
for (const chart of document.querySelectorAll("svg.chart")) {
  const curves = JSON.parse(chart.dataset.curves);
  const card = chart.closest(".card");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const tip = document.createElement("div");
  line.setAttribute("class", "pointer");
  tip.className = "tip";

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const view = chart.viewBox.baseVal;
    const x = ((event.clientX - box.left) / box.width) * view.width;
    const near = curves
      .filter((curve) => curve.points.length)
      .map((curve) => [curve, curve.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))]);
    if (!near.length) return;
    const nearest = near.reduce((a, b) => (Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a))[1];
    line.setAttribute("x1", nearest[0]);
    line.setAttribute("x2", nearest[0]);
    line.setAttribute("y1", 12);
    line.setAttribute("y2", view.height - 36);
    chart.append(line);
    tip.replaceChildren(`${chart.dataset.x} ${nearest[2]}`);
    for (const [curve, point] of near) {
      const row = document.createElement("div");
      const mark = document.createElement("i");
      mark.className = `c${curve.colour}`;
      row.append(mark, curves.length > 1 ? `${curve.label} ${point[3]}` : point[3]);
      tip.append(row);
    }
    card.append(tip);
    const place = event.clientX - card.getBoundingClientRect().left;
    tip.style.left = `${place > box.width / 2 ? place - tip.offsetWidth - 14 : place + 14}px`;
    tip.style.top = "44px";
  });
  chart.addEventListener("pointerleave", () => {
    line.remove();
    tip.remove();
  });
}
