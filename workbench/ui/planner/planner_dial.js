// A slider and a box for one value, both named for who cannot see them. The kernel knows what a
// place of the slider means (planner_dial.py); here is only what the hand does.

function render({ model, el }) {
  // Each dial loads this module for itself: a counter here would give all of them one name.
  const id = `wb-dial-${Math.random().toString(36).slice(2)}`;
  const label = document.createElement("label");
  const range = document.createElement("input");
  const box = document.createElement("input");
  el.classList.add("wb-dial");
  label.htmlFor = range.id = id;
  range.type = "range";
  box.type = "text";
  box.spellcheck = false;
  el.append(label, range, box);

  const show = {
    label() {
      label.textContent = model.get("label");
      box.setAttribute("aria-label", `${model.get("label")}, exact value`);
    },
    help() {
      range.title = box.title = model.get("help");
    },
    text() {
      box.value = model.get("text");
      range.setAttribute("aria-valuetext", model.get("text"));
    },
    wrong() {
      box.setAttribute("aria-invalid", String(model.get("wrong")));
    },
    place() {
      for (const name of ["low", "high", "step"]) {
        range[{ low: "min", high: "max", step: "step" }[name]] = model.get(name);
      }
      if (!held) range.value = model.get("position");
    },
  };

  // While a hand is on the slider, only the hand moves it.
  let held = false;
  range.addEventListener("pointerdown", () => (held = true));
  for (const end of ["pointerup", "pointercancel", "blur"]) {
    range.addEventListener(end, () => (held = false));
  }
  range.addEventListener("input", () => {
    model.set("position", Number(range.value));
    model.save_changes();
  });
  box.addEventListener("change", () => {
    model.set("text", box.value);
    model.save_changes();
  });

  for (const name of ["label", "help", "text", "wrong"]) {
    model.on(`change:${name}`, show[name]);
  }
  for (const name of ["low", "high", "step", "position"]) {
    model.on(`change:${name}`, show.place);
  }
  for (const part of Object.values(show)) part();
  return () => {
    for (const name of ["label", "help", "text", "wrong"]) {
      model.off(`change:${name}`, show[name]);
    }
    for (const name of ["low", "high", "step", "position"]) {
      model.off(`change:${name}`, show.place);
    }
  };
}

export default { render };
