// Buttons that copy their data-copy, or the text of the element that data-copy-from names.
for (const button of document.querySelectorAll("[data-copy], [data-copy-from]")) {
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.dataset.copy ?? document.getElementById(button.dataset.copyFrom).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser blocked copying";
    }
    window.setTimeout(() => (button.textContent = label), 2000);
  });
}
