// Keeps plain keys from the notebook around a panel, says when it is shown, and asks the kernel all
// the time whether it is there: see frame_panel.py.
const BEAT = "there?";
const LOOK_MS = 250; // between two looks
const ASK_MS = 1000; // from an answer to the next question
const ASK_AGAIN_MS = 5000; // between two questions to a kernel that is gone: they may all arrive yet
const PATIENCE_MS = 4000; // longer without an answer, and the kernel counts as gone
const GONE =
  "The kernel behind this panel does not answer: it has ended, its server has, or it is busy with " +
  "a cell. Buttons are off until it answers; if it has ended, open this page anew. Finished runs stay.";

function keep(event) {
  if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
}

// Whether the kernel answers; calls `gone` and `back` when that changes. Returns what ends it.
export function watch(model, gone, back, now = () => performance.now()) {
  let asked = null, last = -Infinity, lost = false;
  const heard = (said) => {
    if (said !== BEAT) return;
    asked = null;
    if (lost) back();
    lost = false;
  };
  const look = () => {
    if (asked !== null && !lost && now() - asked > PATIENCE_MS) {
      lost = true;
      gone();
    }
    if (now() - last < (lost ? ASK_AGAIN_MS : ASK_MS) || (asked !== null && !lost)) return;
    last = now();
    asked ??= last;
    try {
      model.send(BEAT);
    } catch {
      // Its connection is closed: no answer will come.
    }
  };
  model.on("msg:custom", heard);
  const timer = setInterval(look, LOOK_MS);
  return () => {
    clearInterval(timer);
    model.off("msg:custom", heard);
  };
}

function render({ model, el }) {
  model.send("shown");
  let panel = null, off = [];
  const words = document.createElement("div");
  words.textContent = GONE;
  words.setAttribute("role", "alert");
  words.className = "wb-gone";
  const gone = () => {
    if (!panel) return;
    if (!panel.parentElement?.closest(".wb-panel")) panel.prepend(words); // once, for all panels
    off = [...panel.querySelectorAll("button:not(:disabled)")];
    for (const button of off) button.disabled = true;
  };
  const back = () => {
    words.remove();
    for (const button of off) button.disabled = false;
    off = [];
    model.send("shown"); // the kernel may have thought otherwise of buttons meanwhile
  };
  // When this is called it is not yet in the page; when it has been laid out, it is.
  const placed = new ResizeObserver(() => {
    panel = el.closest(".wb-panel");
    if (!panel) return;
    placed.disconnect();
    panel.addEventListener("keydown", keep);
  });
  placed.observe(el);
  const end = watch(model, gone, back);
  return () => {
    end();
    placed.disconnect();
    panel?.removeEventListener("keydown", keep);
  };
}

export default { render };
