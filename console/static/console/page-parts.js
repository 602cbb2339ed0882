// Show one part of a long page at a time. The page has <nav class="tabs" data-parts hidden> with a link to
// #NAME for each part, and elements with the class part-NAME; one with several of them belongs to several parts.
// Without JavaScript the parts follow one another. The part with an error is shown first, else that of the address,
// which may also name an element in it, else the last one on this page, or the first.

const nav = document.querySelector("[data-parts]");
const links = [...(nav?.querySelectorAll("a") ?? [])];
const key = `part of ${location.pathname}`;

const nameOf = (link) => link.hash.slice(1);
const elementsOf = (name) => [...document.querySelectorAll(`.part-${name}`)];
const isIn = (element, name) => element.classList.contains(`part-${name}`);
const names = links.map(nameOf).filter((name) => elementsOf(name).length);

function show(chosen) {
  for (const link of links) {
    const name = nameOf(link);
    link.hidden = !names.includes(name);
    if (name === chosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    for (const element of elementsOf(name)) element.hidden = !isIn(element, chosen);
  }
  sessionStorage.setItem(key, chosen);
}

function partAround(element) {
  const inside = names.map((name) => element?.closest(`.part-${name}`)).find(Boolean);
  return names.find((name) => inside && isIn(inside, name));
}

// The address keeps its part when a form is sent, so what is wrong comes before it, but only when the page opens.
function chosenPart({ opens }) {
  const wrong = names.find((name) => elementsOf(name).some((element) => element.querySelector(".errorlist")));
  if (opens && wrong) return wrong;
  const asked = location.hash.slice(1);
  if (names.includes(asked)) return asked;
  const last = sessionStorage.getItem(key);
  return partAround(document.getElementById(asked)) ?? (names.includes(last) ? last : names[0]);
}

function showChosen({ opens }) {
  const chosen = chosenPart({ opens });
  show(chosen);
  const asked = document.getElementById(location.hash.slice(1));
  if (partAround(asked) === chosen) asked.scrollIntoView();
}

if (names.length > 1) {
  nav.hidden = false;
  showChosen({ opens: true });
  addEventListener("hashchange", () => showChosen({ opens: false }));
  // The address may name the part already while another one is shown.
  for (const link of links) link.addEventListener("click", () => show(nameOf(link)));
}
