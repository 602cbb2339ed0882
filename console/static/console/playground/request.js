// Builds request bodies from form values. Independent of the page.

// Fields that all columns share.
export function commonFields(form) {
  const fields = { model: form.get("model"), seed: Number(form.get("seed") || 0) };
  for (const name of ["max_tokens", "temperature", "top_p"]) {
    const value = form.get(name);
    if (value !== null && value !== "") fields[name] = Number(value);
  }
  const prompt = form.get("prompt");
  if (form.get("kind") === "completion") return { ...fields, prompt };
  const system = form.get("system") ?? "";
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  return { ...fields, messages: [...messages, { role: "user", content: prompt }] };
}

// The steering of a column: a profile, inline edits, or none; none is explicit, so that no default profile applies.
export function steeringFields({ choice, edits, intensity }) {
  if (choice === "") return { profile: null };
  const steering = choice === "draft" ? { steering: { features: edits } } : { profile: choice.slice("profile:".length) };
  return intensity === 1 ? steering : { ...steering, steering_intensity: intensity };
}

// Data that the page needs for its display.
export function readingFields(kind, sae) {
  const logprobs = kind === "chat" ? { logprobs: true, top_logprobs: 5 } : { logprobs: 5 };
  return sae ? { ...logprobs, return_activations: { sae, top_k: 8, special_tokens: true } } : logprobs;
}
