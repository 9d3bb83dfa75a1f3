// The list of runs (grid_panel.py). The bundle of itables stands before this and is `itables`.
const DataTable = itables.default;
// Runs without a value come last in both orders.
const last = (sign) => (a, b) => (a === "" || b === "" ? (a === "") - (b === "") : sign * (a - b));
DataTable.ext.errMode = "throw";
DataTable.ext.type.order["amount-asc"] = last(1);
DataTable.ext.type.order["amount-desc"] = last(-1);

// What a field above a column keeps: `>= 8`, `!= l2l`, `= 4`, or words that all must be there.
function condition(text, number) {
  const [, sign, rest] = text.trim().match(/^(>=|<=|!=|>|<|=)?\s*([^]*)$/);
  const words = rest.toLowerCase(), bound = Number(rest);
  const compare = {
    ">=": (v) => v >= bound, "<=": (v) => v <= bound, ">": (v) => v > bound, "<": (v) => v < bound,
    "=": (v) => v === bound, "!=": (v) => v !== bound,
  }[sign || "="];
  if (number && rest && !isNaN(bound)) return (v) => v !== "" && compare(Number(v));
  if (sign === "!=") return (v) => !String(v).toLowerCase().includes(words);
  if (sign === "=") return (v) => String(v).toLowerCase() === words;
  return (v) => words.split(/\s+/).every((word) => String(v).toLowerCase().includes(word));
}

// Rows of the columns that the kernel sends compressed.
async function unpacked(view) {
  if (!view?.byteLength) return [];
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("gzip"));
  const columns = await new Response(stream).json();
  return (columns[0] ?? []).map((_, row) => columns.map((column) => column[row]));
}

function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "wb-runs";
  el.append(box);
  let table = null, columns = [], rows = [], quiet = false, told = null, sent = 0;

  const typed = () => [...box.querySelectorAll("thead input")];

  // Columns that changed make another table; how it was sorted, filtered and shown is kept.
  function build() {
    const before = table && {
      search: table.search(),
      order: table.order().map(([at, way]) => [columns[at].name, way]),
      typed: Object.fromEntries(typed().map((field) => [field.dataset.name, field.value])),
      seen: Object.fromEntries(columns.map(({ name }, at) => [name, table.column(at).visible()])),
      page: table.page(),
      focused: box.contains(document.activeElement) && document.activeElement.dataset.name,
    };
    columns = model.get("columns");
    const at = (name) => columns.findIndex((column) => column.name === name);
    const order = (before?.order ?? [["started", "desc"]]).map(([name, way]) => [at(name), way]);
    const escaped = DataTable.render.text().display;
    const node = document.createElement("table");
    node.className = "display compact";
    box.replaceChildren(node);
    table = new DataTable(node, {
      data: rows,
      columns: columns.map(({ name, title, number, shown }, place) => ({
        title: escaped(title), footer: escaped(title), visible: before?.seen[name] ?? shown,
        className: number ? "n" : "", type: number ? "amount" : "string",
        cellType: place ? "td" : "th",
        render: (value, kind) => (kind === "display" ? escaped(value ?? "") : value ?? ""),
      })),
      rowId: "0",
      order: order.filter(([place]) => place >= 0),
      pageLength: 25, lengthMenu: [10, 25, 100, 500],
      select: { style: "multi+shift" },
      layout: {
        topStart: "search", topEnd: { buttons: [{ extend: "colvis", text: "Columns" }] },
        bottomStart: "info", bottomEnd: ["pageLength", "paging"],
      },
      language: {
        search: "find", searchPlaceholder: "words of a run", emptyTable: "No run yet.",
        zeroRecords: "No run matches.", info: "Runs _START_ to _END_ of _TOTAL_",
        infoEmpty: "", infoFiltered: "(of _MAX_)", lengthMenu: "_MENU_ a page",
        select: { rows: { _: "%d runs chosen", 0: "", 1: "1 run chosen" } },
      },
      createdRow: (row) => row.firstChild?.setAttribute("scope", "row"),
      drawCallback: () => table && drawn(),
    });
    node.closest(".dt-layout-row").classList.add("wb-scroll");
    node.setAttribute("role", "grid");
    node.setAttribute("aria-label", "runs");
    node.setAttribute("aria-multiselectable", "true");
    columns.forEach((column, place) => {
      const field = document.createElement("input");
      field.type = "search";
      field.dataset.name = column.name;
      field.setAttribute("aria-label", `filter ${column.title}`);
      field.placeholder = column.number ? ">= 0" : "words";
      field.value = before?.typed[column.name] ?? "";
      const filter = () => {
        const keeps = field.value.trim() && condition(field.value, column.number);
        table.column(place).search(keeps || "");
      };
      field.addEventListener("input", () => (filter(), table.draw()));
      filter();
      table.column(place).footer().replaceChildren(field);
    });
    node.tHead.append(node.tFoot.rows[0]); // below the titles, also for the Tab key
    table.on("select deselect", chosen);
    if (before?.search) table.search(before.search);
    choose();
    table.draw();
    if (before) table.page(before.page).draw("page");
    typed().find((field) => field.dataset.name === before?.focused)?.focus();
  }

  const keysOf = (which) => table.rows(which).data().toArray().map((row) => row[0]);

  // Rows are one stop of the Tab key; arrows go on from there.
  function drawn() {
    const lines = [...box.querySelectorAll("tbody tr[id]")];
    lines.forEach((row, place) => (row.tabIndex = place ? -1 : 0));
    mark();
    const filtered = table.rows({ search: "applied" }).count() < table.rows().count();
    const keys = filtered ? keysOf({ search: "applied" }) : null;
    if (JSON.stringify(keys) === told) return;
    told = JSON.stringify(keys);
    model.set("listed", keys);
    model.save_changes();
  }

  function mark() {
    for (const row of box.querySelectorAll("tbody tr[id]")) {
      row.setAttribute("aria-selected", String(table.row(row).selected()));
    }
  }

  function chosen() {
    if (quiet) return;
    mark();
    const keys = keysOf({ selected: true });
    const before = model.get("chosen").filter((key) => keys.includes(key));
    model.set("chosen", [...before, ...keys.filter((key) => !before.includes(key))]);
    model.save_changes();
  }

  function choose() {
    const keys = new Set(model.get("chosen"));
    quiet = true;
    table.rows((_, row) => !keys.has(row[0]), { selected: true }).deselect();
    table.rows((_, row) => keys.has(row[0]), { selected: false }).select();
    quiet = false;
    mark();
  }

  function replace() {
    const active = document.activeElement;
    const focused = box.contains(active) && active.closest("tr")?.id;
    table.clear().rows.add(rows).draw(false);
    choose();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  box.addEventListener("keydown", (event) => {
    const row = event.target;
    if (!row.matches("tbody tr")) return;
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling };
    if (event.key in next) next[event.key]?.focus();
    else if (event.key === " " || event.key === "Enter") toggle(table.row(row));
    else return;
    event.preventDefault();
  });
  const toggle = (row) => (row.selected() ? row.deselect() : row.select());
  const all = async () => {
    const turn = ++sent;
    const found = await unpacked(model.get("rows"));
    if (turn !== sent) return; // others came meanwhile
    rows = found;
    if (!table || JSON.stringify(columns) !== JSON.stringify(model.get("columns"))) build();
    else replace();
  };
  all();
  model.on("change:rows change:columns", all);
  const chosenThere = () => table && choose();
  model.on("change:chosen", chosenThere);
  return () => (
    model.off("change:rows change:columns", all), model.off("change:chosen", chosenThere)
  );
}

export default { render };
