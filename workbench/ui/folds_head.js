// A heading that is a button. Whether it is open is said by `aria-expanded`, and seen by its mark.
function render({ model, el }) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "wb-fold";
  el.append(button);

  const show = {
    title() {
      button.textContent = model.get("title");
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
