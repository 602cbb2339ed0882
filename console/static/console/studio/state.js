// The studio's state as text for the address, and its history for undo.

export const MAX_ADDRESS = 16000; // longer addresses are cut by some programs

export function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// Null if the text is not a state. Without edits, they are those of the profile.
export function decode(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
    const state = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    return isState(state) ? state : null;
  } catch {
    return null;
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isState(state) {
  if (!isObject(state)) return false;
  if (state.edits !== undefined && !(Array.isArray(state.edits) && state.edits.every(isObject))) return false;
  return [state.model, state.profile].every((name) => name === undefined || name === null || typeof name === "string");
}

// Snapshots that can be undone and done again.
export class History {
  constructor(first) {
    this._done = [first];
    this._undone = [];
  }

  get canUndo() { return this._done.length > 1; }
  get canRedo() { return this._undone.length > 0; }

  // Equal snapshots in a row are one.
  note(snapshot) {
    if (this._done.at(-1) === snapshot) return;
    this._done.push(snapshot);
    this._undone = [];
  }

  undo() {
    this._undone.push(this._done.pop());
    return this._done.at(-1);
  }

  redo() {
    this._done.push(this._undone.pop());
    return this._done.at(-1);
  }
}
