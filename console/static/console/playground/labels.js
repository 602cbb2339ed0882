// Labels of features that answers brought, asked for once.
export class Labels {
  // `url` knows labels; `page` leads to a feature.
  constructor({ url, page }) {
    this._url = url;
    this._page = page;
    this._known = new Map();
  }

  label(sae, index) {
    return this._known.get(`${sae}#${index}`) ?? "";
  }

  of(sae, index) {
    const label = this.label(sae, index);
    return label ? `#${index} ${label}` : `#${index}`;
  }

  // To the feature's page, beside this one: what was typed and answered here stays.
  link(sae, index) {
    const link = document.createElement("a");
    link.href = `${this._page}?${new URLSearchParams({ sae, index })}`;
    link.target = "_blank";
    link.rel = "noopener";
    link.textContent = this.of(sae, index);
    return link;
  }

  async learn(sae, features) {
    const wanted = [...new Set(features.map((one) => one.index))].filter((index) => !this._known.has(`${sae}#${index}`));
    if (!sae || !wanted.length) return;
    const query = new URLSearchParams({ sae, indices: wanted.slice(0, 500).join(",") });
    const answer = await fetch(`${this._url}?${query}`, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok || answer.redirected) return; // numbers do without labels
    const { labels } = await answer.json();
    for (const index of wanted) this._known.set(`${sae}#${index}`, labels[index] ?? "");
  }
}
