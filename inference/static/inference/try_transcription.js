// Transcribes a file or a recording. Segments appear as they come; then they are the captions of the sound.
import { objects, offer, onSend, post, say, sayDone } from "./trying.js";

const form = document.getElementById("try-form");
const file = document.getElementById("try-file");
const result = document.getElementById("try-result");
const player = result?.querySelector("video");
const list = document.getElementById("try-segments");
const text = document.getElementById("try-answer");
const save = document.getElementById("try-save");

let recorded = null;
let segments = [];

const clock = (seconds) => {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(1).padStart(4, "0")}`;
};

const stamp = (seconds) => new Date(Math.round(seconds * 1000)).toISOString().slice(11, 23);

const captions = () => {
  const cues = segments.map(
    (each) => `${stamp(each.start)} --> ${stamp(each.end)}\n${each.text.trim().replaceAll("-->", "->")}\n`,
  );
  return new Blob([["WEBVTT\n", ...cues].join("\n")], { type: "text/vtt" });
};

const add = (segment) => {
  segments.push(segment);
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  const time = document.createElement("span");
  time.className = "try-time";
  time.textContent = clock(segment.start);
  button.append(time, segment.text.trim());
  button.addEventListener("click", () => {
    player.currentTime = segment.start;
    player.play().catch(() => null);
  });
  item.append(button);
  list.append(item);
};

// Browsers show captions over pictures only. Those of a sound stand above its controls.
const showCaption = () => {
  const cues = [...(player.querySelector("track").track.activeCues ?? [])];
  document.getElementById("try-caption").textContent = cues.map((cue) => cue.text).join("\n");
};

const noteKind = () => {
  const isSound = player.videoWidth === 0;
  player.classList.toggle("is-sound", isSound);
  document.getElementById("try-caption").hidden = !isSound;
  player.querySelector("track").track.mode = isSound ? "hidden" : "showing";
};

const mark = () => {
  const at = player.currentTime;
  segments.forEach((each, place) => {
    const button = list.children[place].firstChild;
    if (at >= each.start && at < each.end) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
};

const prepare = (sound) => {
  segments = [];
  list.replaceChildren();
  text.textContent = "";
  text.hidden = save.hidden = true;
  if (player.src.startsWith("blob:")) URL.revokeObjectURL(player.src);
  player.querySelector("track").removeAttribute("src");
  document.getElementById("try-caption").textContent = "";
  player.src = URL.createObjectURL(sound);
  result.hidden = false;
};

const takeSegments = async (answer) => {
  for await (const event of objects(answer)) if (event.type === "transcript.text.segment") add(event);
  const track = player.querySelector("track");
  offer(save, captions(), "transcript.vtt");
  save.textContent = "Download WebVTT";
  track.src = save.href;
};

const takeText = async (answer, format) => {
  const body = await answer.text();
  text.textContent = format === "verbose_json" ? JSON.stringify(JSON.parse(body), null, 2) : body;
  text.hidden = false;
  const ending = { text: "txt", verbose_json: "json" }[format] ?? format;
  offer(save, new Blob([body]), `transcript.${ending}`);
  save.textContent = "Download";
};

const ask = async (signal) => {
  const sound = file.files[0] ?? recorded;
  if (!sound) {
    say("Choose a file, or record something.", true);
    return;
  }
  if (sound.size > Number(form.dataset.maxBytes)) {
    say(`The file is too large for this page. ${form.dataset.tooLarge}`, true);
    return;
  }
  prepare(sound);
  const data = new FormData(form);
  data.set("file", sound, "sound");
  const format = form.elements.response_format.value;
  const answer = await post(form, signal, data);
  await (format === "segments" ? takeSegments(answer) : takeText(answer, format));
  const isSilent = format === "segments" && segments.length === 0;
  sayDone(form, answer, isSilent ? "Finished. No speech was found." : "Finished.");
};

const record = (button) => {
  let recorder = null;
  button.hidden = false;
  button.addEventListener("click", async () => {
    if (recorder) {
      recorder.stop();
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch {
      say("The browser does not allow recording. Check the permission for the microphone.", true);
      return;
    }
    const blocks = [];
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", (event) => blocks.push(event.data));
    recorder.addEventListener("stop", () => {
      stream.getTracks().forEach((track) => track.stop());
      recorded = new Blob(blocks, { type: recorder.mimeType });
      recorder = null;
      file.value = "";
      button.textContent = "Record again";
      form.requestSubmit();
    });
    recorder.start();
    button.textContent = "Stop and transcribe";
    say("Recording…");
  });
};

if (form) {
  onSend(form, ask);
  file.addEventListener("change", () => (recorded = null));
  player.addEventListener("timeupdate", mark);
  player.addEventListener("loadedmetadata", noteKind);
  player.querySelector("track").track.addEventListener("cuechange", showCaption);
  if (navigator.mediaDevices && window.MediaRecorder) record(document.getElementById("try-record")); // not over plain http
}
