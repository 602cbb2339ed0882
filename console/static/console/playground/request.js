// Bodies of requests, from what the forms say. Nothing here knows the page.

// What all columns have in common.
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

// What steers a column: a profile, edits of its own, or nothing, said outright so that no default steps in.
export function steeringFields({ choice, edits, intensity }) {
  if (choice === "") return { profile: null };
  const steering = choice === "draft" ? { steering: { features: edits } } : { profile: choice.slice("profile:".length) };
  return intensity === 1 ? steering : { ...steering, steering_intensity: intensity };
}

// What the page wants to know besides.
export function readingFields(kind, sae) {
  const logprobs = kind === "chat" ? { logprobs: true, top_logprobs: 5 } : { logprobs: 5 };
  return sae ? { ...logprobs, return_activations: { sae, top_k: 8, special_tokens: true } } : logprobs;
}
