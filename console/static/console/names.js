// Accessible names for Django's widgets. The label of a choice belongs to a hidden select: copy it to the element that
// replaces the select, also in forms that are added later.
function nameChoice(container) {
  const select = container.previousElementSibling;
  const label = select?.labels?.[0];
  if (!label) return;
  label.id ||= `${select.id}-label`;
  const shown = container.querySelector(".select2-selection__rendered");
  shown?.setAttribute("aria-labelledby", label.id);
  container.querySelector(".select2-selection")?.setAttribute("aria-labelledby", `${label.id} ${shown?.id ?? ""}`.trim());
}

function nameAll() {
  document.querySelectorAll("select + .select2-container").forEach(nameChoice);
  for (const field of document.querySelectorAll(".select2-search__field")) field.setAttribute("aria-label", "Search");
  for (const icon of document.querySelectorAll(".search-label-icon")) icon.setAttribute("role", "img");
}

nameAll();
new MutationObserver(nameAll).observe(document.body, { childList: true, subtree: true });
