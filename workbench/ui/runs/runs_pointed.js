// A plot to point at (runs_table_plot_panel.py). Plotly's script stands before this, as `module`.
function render({ model, el }) {
  const box = document.createElement("div");
  box.setAttribute("role", "img");
  el.append(box);
  const show = () => {
    const { data, layout } = structuredClone(model.get("figure"));
    for (const marks of data) marks.cliponaxis = false; // how runs ended stands above the axes
    const color = getComputedStyle(el).getPropertyValue("--jp-ui-font-color1") || "#222";
    const clear = { paper_bgcolor: "#0000", plot_bgcolor: "#0000", uirevision: "same" };
    for (const axis of [layout.xaxis, layout.yaxis]) {
      Object.assign(axis, { gridcolor: "#8884", title: { ...axis.title, font: { color } } });
    }
    const size = { autosize: true, width: undefined, height: 420 };
    Object.assign(layout, clear, size, { font: { color } });
    module.exports.react(box, data, layout, { displaylogo: false, responsive: true });
    box.setAttribute("aria-label", model.get("words"));
  };
  // It measures its room, which it has once it is in the page.
  const placed = new ResizeObserver(() => (placed.disconnect(), show()));
  placed.observe(el);
  model.on("change:figure", show);
  return () => model.off("change:figure", show);
}

export default { render };
