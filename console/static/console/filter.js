// Filters the rows of a table as one types: <input data-filter="ID of the table">. A checkbox with data-filter-flag keeps
// the rows whose data-flags name it. [data-filter-count] tells how many are left, [data-filter-none] appears without any.

for (const field of document.querySelectorAll("[data-filter]")) {
  const rows = [...document.querySelectorAll(`#${field.dataset.filter} tbody tr`)];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const flags = [...document.querySelectorAll("[data-filter-flag]")];
  const count = document.querySelector("[data-filter-count]");
  const none = document.querySelector("[data-filter-none]");

  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const required = flags.filter((flag) => flag.checked).map((flag) => flag.dataset.filterFlag);
    for (const row of rows) {
      const has = (row.dataset.flags ?? "").split(" ");
      row.hidden = !(words.every((word) => texts.get(row).includes(word)) && required.every((flag) => has.includes(flag)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    const found = left === rows.length ? left : `${left} of ${rows.length}`;
    count.textContent = `${found} ${count.dataset.filterCount}`;
    none.hidden = left > 0;
  };
  field.addEventListener("input", show);
  for (const flag of flags) flag.addEventListener("change", show);
  show(); // browsers restore the field when one comes back
}
