// Shows the state of extraction jobs, and reloads the list when one ends.
const OPEN = ["queued", "running"];

document.addEventListener("live:told", ({ detail: { topic, data } }) => {
  const line = document.querySelector(`[data-extraction][data-live-topic="${CSS.escape(topic)}"]`);
  if (!line || !data) return;
  line.querySelector("[data-extraction-state]").textContent = data.state;
  if (!OPEN.includes(data.state)) window.location.reload();
});
