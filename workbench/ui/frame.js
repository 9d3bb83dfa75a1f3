// Keeps plain keys from the notebook around a panel, says when it is shown, and asks the kernel all
// the time whether it is there: see frame_panel.py.
const BEAT = "there?";
const LOOK_MS = 250, ASK_MS = 1000, PATIENCE_MS = 4000;
const GONE =
  "The kernel behind this panel does not answer: it has ended, its server has, or a cell keeps it " +
  "busy. Buttons are off until it answers; if it has ended, open the page anew. Runs that are " +
  "finished stay.";

function keep(event) {
  if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
}

function render({ model, el }) {
  model.send("shown");
  let panel = null, asked = null, answered = 0, lost = false, off = [];
  const words = document.createElement("div");
  Object.assign(words, { textContent: GONE, className: "wb-gone" });
  words.setAttribute("role", "alert");
  const look = () => {
    const now = performance.now();
    if (lost && now - asked > 2 * PATIENCE_MS) asked = null; // what was asked may never arrive
    if (asked === null && now - answered > ASK_MS) {
      asked = now;
      try { model.send(BEAT); } catch { /* its connection is closed: no answer will come */ }
    }
    if (lost || asked === null || now - asked < PATIENCE_MS || !panel) return;
    lost = true;
    if (!panel.parentElement?.closest(".wb-panel")) panel.prepend(words); // once, for all panels
    off = [...panel.querySelectorAll("button:not(:disabled)")];
    for (const button of off) button.disabled = true;
  };
  const heard = (said) => {
    if (said !== BEAT) return;
    [asked, answered, lost] = [null, performance.now(), false];
    words.remove();
    for (const button of off.splice(0)) button.disabled = false;
  };
  model.on("msg:custom", heard);
  const timer = setInterval(look, LOOK_MS);
  // When this is called it is not yet in the page; when it has been laid out, it is.
  const placed = new ResizeObserver(() => {
    panel = el.closest(".wb-panel");
    if (!panel) return;
    placed.disconnect();
    panel.addEventListener("keydown", keep);
  });
  placed.observe(el);
  return () => {
    clearInterval(timer);
    model.off("msg:custom", heard);
    placed.disconnect();
    panel?.removeEventListener("keydown", keep);
  };
}

export default { render };
