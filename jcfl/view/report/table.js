"use strict";
(() => {
  const { columns, rows } = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const SHOWN = 25; // rows on a page
  const chosen = new Map(); // column -> the value that rows must have
  let wanted = "", sorted = { by: 0, up: true }, page = 0;

  const text = (value, kind) =>
    value === null ? "–" : kind === "share" ? (100 * value).toFixed(1) + " %" : String(value);

  const compared = (x, y) => (x > y) - (x < y); // numbers, or ids that are text

  const order = (a, b) => {
    const [x, y] = [a[sorted.by], b[sorted.by]];
    const first = compared(a[0], b[0]);
    if (x === null || y === null) return (x === null) - (y === null) || first; // none: last, either way
    return (sorted.up ? compared(x, y) : compared(y, x)) || first;
  };

  const matching = () =>
    rows
      .filter((row) => !wanted || String(row[0]) === wanted)
      .filter((row) => [...chosen].every(([index, value]) => String(row[index]) === value))
      .sort(order);

  const element = (name, content, more = {}) => {
    const made = Object.assign(document.createElement(name), more);
    made.append(content);
    return made;
  };

  const draw = () => {
    const found = matching();
    const pages = Math.max(1, Math.ceil(found.length / SHOWN));
    page = Math.min(page, pages - 1);
    find("table").tBodies[0].replaceChildren(
      ...found.slice(page * SHOWN, (page + 1) * SHOWN).map((row) => {
        const line = document.createElement("tr");
        line.append(...row.map((value, i) => element(i ? "td" : "th", text(value, columns[i].kind), i ? {} : { scope: "row" })));
        return line;
      }),
    );
    [...find("table").tHead.rows[0].cells].forEach((cell, i) => {
      if (i === sorted.by) cell.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    find("count").textContent = `${found.length} of ${rows.length} clients`;
    find("where").textContent = `page ${page + 1} of ${pages}`;
    find("before").disabled = page === 0;
    find("after").disabled = page === pages - 1;
  };

  const changed = () => {
    page = 0;
    draw();
  };

  columns.forEach(({ title, kind }, index) => {
    const button = element("button", title, { type: "button" });
    button.addEventListener("click", () => {
      sorted = { by: index, up: sorted.by === index ? !sorted.up : true };
      changed();
    });
    find("table").tHead.rows[0].append(element("th", button, { scope: "col" }));
    if (!columns[index].filter) return;
    const values = [...new Set(rows.map((row) => row[index]))].sort((a, b) => (a === null) - (b === null) || a - b);
    const select = document.createElement("select");
    select.dataset.column = title;
    select.append(new Option("any", "any"), ...values.map((value) => new Option(text(value, kind), String(value))));
    select.addEventListener("change", () => {
      select.value === "any" ? chosen.delete(index) : chosen.set(index, select.value);
      changed();
    });
    const label = element("label", title + " ");
    label.append(select);
    find("filters").append(label);
  });

  find("search").addEventListener("input", (event) => {
    wanted = event.target.value.trim();
    changed();
  });
  find("before").addEventListener("click", () => (page--, draw()));
  find("after").addEventListener("click", () => (page++, draw()));
  find("csv").addEventListener("click", () => {
    const quoted = (value) => (value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
    const lines = [columns.map((column) => column.title), ...matching()].map((line) => line.map(quoted).join(","));
    const link = document.createElement("a");
    link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(lines.join("\n") + "\n");
    link.download = "clients.csv";
    link.click();
  });
  draw();
})();
