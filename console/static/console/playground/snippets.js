// The request for a shell and for Python, in ASCII only, so that no character can hide.
const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };
const OWN = new Set(["profile", "steering", "steering_intensity"]); // extensions of this server

const hex = (number, size) => number.toString(16).padStart(size, "0");
const ascii = (json) => json.replace(/[\u007f-\uffff]/g, (unit) => `\\u${hex(unit.charCodeAt(0), 4)}`);

export function asCurl(origin, kind, body, needsKey) {
  const quoted = ascii(JSON.stringify({ ...body, stream: true })).replaceAll("'", "'\\''");
  const key = needsKey ? ' \\\n  -H "Authorization: Bearer $MILLM_API_KEY"' : "";
  return `curl -N '${origin}${PATHS[kind]}' \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'\n`;
}

function pythonText(text) {
  const escaped = JSON.stringify(text).replace(/[\u{7f}-\u{10ffff}]/gu, (character) => {
    const point = character.codePointAt(0);
    return point > 0xffff ? `\\U${hex(point, 8)}` : `\\u${hex(point, 4)}`;
  });
  return escaped;
}

export function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${pythonText(name)}: ${python(one)}`).join(", ")}}`;
  }
  return String(value);
}

export function asPython(origin, kind, body, needsKey) {
  const own = Object.fromEntries(Object.entries(body).filter(([name]) => OWN.has(name)));
  const known = Object.entries(body).filter(([name]) => !OWN.has(name));
  const lines = [...known.map(([name, value]) => `    ${name}=${python(value)},`)];
  if (Object.keys(own).length) lines.push(`    extra_body=${python(own)},`);
  const key = needsKey ? 'os.environ["MILLM_API_KEY"]' : '"none"';
  const method = kind === "chat" ? "chat.completions" : "completions";
  const result = kind === "chat" ? "answer.choices[0].message.content" : "answer.choices[0].text";
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${pythonText(`${origin}/v1`)}, api_key=${key})`,
    `answer = client.${method}.create(`,
    ...lines,
    ")",
    `print(${result})`,
    "",
  ].join("\n");
}
