// Keeps plain keys from the notebook around a panel, and says when it is shown; see frame_panel.py.
function keep(event) {
  if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
}

function render({ model, el }) {
  model.send("shown");
  let panel = null;
  // When this is called it is not yet in the page; when it has been laid out, it is.
  const placed = new ResizeObserver(() => {
    panel = el.closest(".wb-panel");
    if (!panel) return;
    placed.disconnect();
    panel.addEventListener("keydown", keep);
  });
  placed.observe(el);
  return () => {
    placed.disconnect();
    panel?.removeEventListener("keydown", keep);
  };
}

export default { render };
