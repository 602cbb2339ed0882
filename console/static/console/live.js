// The page's connection to the server. `follow(topic, show)` calls `show(data)` now and whenever the topic changes; data
// is null if the user may not see the topic. A lost connection is reported in #live-line and retried.

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30000;
const LOGGED_OUT = 4401;

const followers = new Map(); // topic -> functions
const newest = new Map(); // topic -> data
let socket = null;
let waitMs = FIRST_WAIT_MS;
let timer = 0;

export function follow(topic, show) {
  if (!followers.has(topic)) {
    followers.set(topic, new Set());
    if (socket?.readyState === WebSocket.OPEN) say({ subscribe: topic });
  }
  followers.get(topic).add(show);
  if (newest.has(topic)) show(newest.get(topic));
  if (!socket && !timer) connect();
}

function connect() {
  timer = 0;
  const address = new URL("/admin/live/", window.location.href);
  address.protocol = address.protocol.replace("http", "ws");
  socket = new WebSocket(address);
  socket.addEventListener("open", opened);
  socket.addEventListener("message", heard);
  socket.addEventListener("close", lost);
}

function opened() {
  for (const topic of followers.keys()) say({ subscribe: topic });
}

function heard(event) {
  const { topic, data } = JSON.parse(event.data);
  say({ ack: topic });
  waitMs = FIRST_WAIT_MS;
  announce("");
  newest.set(topic, data);
  for (const show of followers.get(topic) ?? []) show(data);
}

function lost(event) {
  socket = null;
  if (event.code === LOGGED_OUT) {
    announce("You are logged out. Reload the page to log in.");
    return;
  }
  announce("Disconnected. Reconnecting…");
  timer = window.setTimeout(connect, waitMs * (0.75 + Math.random() / 2));
  waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
}

function say(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function announce(text) {
  const line = document.getElementById("live-line");
  if (!line || line.textContent === text) return;
  line.textContent = text;
  line.hidden = text === "";
  document.documentElement.classList.toggle("is-disconnected", text !== "");
}

// A page that is left closes its connection, which is not reported as lost. A page restored from the browser's cache
// connects again.
window.addEventListener("pagehide", () => {
  socket?.removeEventListener("close", lost);
  socket?.close();
  socket = null;
});
window.addEventListener("pageshow", (event) => {
  if (event.persisted && followers.size) connect();
});
window.addEventListener("online", () => {
  if (timer) {
    window.clearTimeout(timer);
    connect();
  }
});
