// Keys for lists: j and k move to the link of the next or previous row, which Enter opens; / goes to the page's search,
// or opens the palette on pages without one. They are ignored while the user types.
import { isPaletteOpen, openPalette } from "./palette.js";

const ROW_LINKS = "#result_list tbody tr, #trail tbody tr, .hits li";
const SEARCHES = "#content form[role=search] input:not([type=hidden], [type=submit]), #content [data-page-search]";
const NOT_TYPED = "[type=checkbox], [type=radio], [type=range], [type=submit], [type=button], [type=file]";

function isTyping(target) {
  return target.isContentEditable || target.matches(`input:not(${NOT_TYPED}), textarea, select`);
}

function move(step) {
  const rows = [...document.querySelectorAll(ROW_LINKS)].filter((row) => row.querySelector("a[href]"));
  if (!rows.length) return false;
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const next = here < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + step, 0), rows.length - 1);
  const row = rows[next];
  (row.querySelector("th a[href]") ?? row.querySelector("a[href]")).focus();
  row.scrollIntoView({ block: "nearest" });
  return true;
}

function goToSearch() {
  const field = [...document.querySelectorAll(SEARCHES)].find((each) => each.checkVisibility());
  if (!field) return openPalette();
  field.focus();
  field.select?.();
}

const ACTS = { j: () => move(1), k: () => move(-1), "/": goToSearch };

document.addEventListener("keydown", (event) => {
  const act = ACTS[event.key];
  const isOurs = act && !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
  if (!isOurs || event.defaultPrevented || isPaletteOpen() || isTyping(event.target)) return;
  if (act() !== false) event.preventDefault();
});
