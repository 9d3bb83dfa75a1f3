// A heading that is a button. Whether it is open is said by `aria-expanded`, and seen by its mark.
function render({ model, el }) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "wb-fold";
  const title = document.createElement("span");
  const note = document.createElement("span");
  note.className = "wb-fold-note";
  button.append(title, note);
  el.append(button);

  const show = {
    title() {
      title.textContent = model.get("title");
    },
    note() {
      note.textContent = model.get("note");
    },
    opened() {
      button.setAttribute("aria-expanded", String(model.get("opened")));
    },
  };
  button.addEventListener("click", () => {
    model.set("opened", !model.get("opened"));
    model.save_changes();
  });
  for (const [name, act] of Object.entries(show)) {
    model.on(`change:${name}`, act);
    act();
  }
  return () => {
    for (const [name, act] of Object.entries(show)) model.off(`change:${name}`, act);
  };
}

export default { render };
