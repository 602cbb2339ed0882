// Labels of features that answers brought, asked for once.
export class Labels {
  constructor(url) {
    this._url = url;
    this._known = new Map();
  }

  of(sae, index) {
    const label = this._known.get(`${sae}#${index}`);
    return label ? `#${index} ${label}` : `#${index}`;
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
