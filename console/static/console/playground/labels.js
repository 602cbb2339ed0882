// Labels of the features in answers; each is fetched once.
export class Labels {
  // `url` returns labels; `page` is the URL of a feature.
  constructor({ url, page }) {
    this._url = url;
    this._page = page;
    this._known = new Map();
    this._unnamed = new Map(); // elements that show a feature without a known label -> {sae, index, write}
  }

  label(sae, index) {
    return this._known.get(`${sae}#${index}`) ?? "";
  }

  of(sae, index) {
    const label = this.label(sae, index);
    return label ? `#${index} ${label}` : `#${index}`;
  }

  // Opens the feature's page in a new tab, so that prompts and answers here are kept.
  link(sae, index) {
    const link = document.createElement("a");
    link.href = `${this._page}?${new URLSearchParams({ sae, index })}`;
    link.target = "_blank";
    link.rel = "noopener";
    this.show(link, sae, index, (name) => (link.textContent = name));
    return link;
  }

  // Calls `write` with the feature's name, and again when its label arrives, if the element is still on the page.
  show(element, sae, index, write) {
    write(this.of(sae, index));
    if (!this._known.has(`${sae}#${index}`)) this._unnamed.set(element, { sae, index, write });
  }

  async learn(sae, features) {
    const unknown = [...new Set(features.map((one) => one.index))].filter((index) => !this._known.has(`${sae}#${index}`));
    if (!sae || !unknown.length) return;
    const query = new URLSearchParams({ sae, indices: unknown.slice(0, 500).join(",") });
    const answer = await fetch(`${this._url}?${query}`, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok || answer.redirected) return; // without labels, numbers are shown
    const { labels } = await answer.json();
    for (const index of unknown) this._known.set(`${sae}#${index}`, labels[index] ?? "");
    for (const [element, { sae, index, write }] of this._unnamed) {
      if (element.isConnected && !this._known.has(`${sae}#${index}`)) continue;
      this._unnamed.delete(element);
      write(this.of(sae, index));
    }
  }
}
