for (const plot of document.querySelectorAll("figure:not(.points) .plot")) {
  const { lines, points } = JSON.parse(plot.parentElement.querySelector("script").textContent);
  const cursor = plot.querySelector(".cursor"), box = plot.querySelector("output");
  const show = (event) => {
    const area = plot.getBoundingClientRect(), at = (event.clientX - area.left) / area.width;
    const point = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    plot.classList.add("on");
    cursor.style.left = `${point[0] * 100}%`;
    box.replaceChildren(Object.assign(document.createElement("b"), { textContent: point[1] }));
    lines.forEach(([name], i) => box.append(document.createElement("br"), `${name} ${point[i + 2] || "–"}`));
    const right = point[0] > 0.5;
    box.style.left = right ? "auto" : `calc(${point[0] * 100}% + 10px)`;
    box.style.right = right ? `calc(${(1 - point[0]) * 100}% + 10px)` : "auto";
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => plot.classList.remove("on"));
}
