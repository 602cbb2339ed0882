// Show one part of a long page at a time. The page has <nav class="tabs" data-parts hidden> with a link to
// #NAME for each part, and elements with the class part-NAME. Without JavaScript the parts follow one another.
// A part is chosen by the address; otherwise it is the one with an error, the last one on this page, or the first.

const nav = document.querySelector("[data-parts]");
const links = [...(nav?.querySelectorAll("a") ?? [])];
const key = `part of ${location.pathname}`;

const nameOf = (link) => link.hash.slice(1);
const elementsOf = (name) => [...document.querySelectorAll(`.part-${name}`)];
const names = links.map(nameOf).filter((name) => elementsOf(name).length);

function show(chosen) {
  for (const link of links) {
    const name = nameOf(link);
    link.hidden = !names.includes(name);
    if (name === chosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    for (const element of elementsOf(name)) element.hidden = name !== chosen;
  }
  sessionStorage.setItem(key, chosen);
}

function chosenPart() {
  const asked = location.hash.slice(1);
  if (names.includes(asked)) return asked;
  const wrong = names.find((name) => elementsOf(name).some((element) => element.querySelector(".errorlist")));
  const last = sessionStorage.getItem(key);
  return wrong ?? (names.includes(last) ? last : names[0]);
}

if (names.length > 1) {
  nav.hidden = false;
  show(chosenPart());
  addEventListener("hashchange", () => show(chosenPart()));
}
