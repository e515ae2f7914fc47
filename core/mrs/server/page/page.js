// The chat: sends the conversation, shows the reply as it arrives.

import { chat, getJson, hasKey, useKey } from "./client.js";
import { acceptImages, hasImages, keepDrops, takeImages } from "./images.js";
import { ReplyView, userMessage } from "./message.js";
import { planNodes } from "./plan.js";
import { requestFields, restoreSettings, systemPrompt } from "./settings.js";

const find = (selector) => document.querySelector(selector);
const [log, prompt, error, state] = ["#messages", "#prompt", "#error", "#state"].map(find);
const POLL_MS = 1000;

let turns = []; // {text, images, view, reply: {text, thoughts, note}}
let model = "the model";
let plan = null;
let stopping = null; // the AbortController of the reply that arrives
let afterKey = null; // what the key was needed for

function showError(message) {
  error.textContent = message;
  error.hidden = !message;
}

/** Shows an error; for a missing key it asks for one, with which `again` is tried. */
function failed(problem, again) {
  const needsKey = problem.status === 401;
  showError(needsKey && !hasKey() ? "" : problem.message);
  if (!needsKey) return;
  afterKey = again;
  find("#key-form").hidden = false;
  find("#key").focus();
}

async function connect() {
  try {
    const found = (await getJson("v1/models")).data[0];
    model = found.id;
    find("#model").textContent = document.title = model;
    plan = await getJson("plan");
    state.textContent = "";
    showError("");
    if (plan.vision) acceptImages(showError);
  } catch (problem) {
    if (problem.status === 503 || problem.status === 0) {
      state.textContent = problem.message;
      setTimeout(connect, POLL_MS);
    } else failed(problem, connect);
  }
}

function content({ text, images }) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...parts, { type: "text", text }];
}

function requestBody() {
  const system = systemPrompt();
  const before = system ? [{ role: "system", content: system }] : [];
  const answered = turns.slice(0, -1).filter((turn) => turn.reply.text);
  const said = answered.flatMap((turn) => [
    { role: "user", content: content(turn) },
    {
      role: "assistant",
      content: turn.reply.text,
      reasoning_content: turn.reply.thoughts || null,
    },
  ]);
  const last = { role: "user", content: content(turns.at(-1)) };
  return { ...requestFields(), messages: [...before, ...said, last] };
}

function send() {
  const text = prompt.value.trim();
  if (stopping || (!text && !hasImages())) return;
  const turn = { text, images: takeImages() };
  turns.push(turn);
  log.append(userMessage(turn));
  prompt.value = "";
  fit();
  answer(turn);
}

/** Let the model answer the last turn. */
async function answer(turn) {
  const view = new ReplyView(model);
  const reply = { text: "", thoughts: "", note: "" };
  Object.assign(turn, { view, reply });
  view.ondraw = follow;
  log.append(view.node);
  showError("");
  setBusy(new AbortController());
  try {
    await receive(reply, view);
  } catch (problem) {
    const isStop = problem.name === "AbortError";
    reply.note = [isStop ? "stopped" : "failed", reply.note].filter(Boolean).join(" · ");
    if (!isStop) failed(problem, () => again(turn));
  }
  setBusy(null);
  view.end(reply, () => again(turn));
}

/** Answer a turn anew; those after it go. */
function again(turn) {
  if (stopping || !turns.includes(turn)) return;
  turns.length = turns.indexOf(turn) + 1;
  while (log.lastChild !== turn.view.node) log.lastChild.remove();
  turn.view.node.remove();
  answer(turn);
}

async function receive(reply, view) {
  const start = performance.now();
  let first = 0;
  let pieces = 0;
  let reason = "";
  for await (const { choices, usage } of chat(requestBody(), stopping.signal)) {
    const { delta, finish_reason } = choices[0] ?? { delta: {} };
    const added = (delta.content ?? "") + (delta.reasoning_content ?? "");
    reply.text += delta.content ?? "";
    reply.thoughts += delta.reasoning_content ?? "";
    reason = finish_reason ?? reason;
    if (added) {
      first ||= performance.now();
      pieces += 1;
      const rate = (pieces - 1) / ((performance.now() - first) / 1000);
      if (pieces > 1) reply.note = `about ${Math.round(rate)} tokens/s`;
    }
    if (usage) reply.note = figures(usage, first - start, reason);
    view.show(reply);
  }
}

function figures(usage, first_ms, reason) {
  const planned = usage.planned_compl_tok_per_sec?.map(Math.round).join("–");
  return [
    `${usage.completion_tokens} tokens`,
    `${usage.avg_compl_tok_per_sec.toFixed(1)} tokens/s`,
    planned && `planned ${planned}`,
    first_ms > 0 && `first after ${(first_ms / 1000).toFixed(2)} s`,
    reason === "length" && "cut off at its most tokens",
  ].filter(Boolean).join(" · ");
}

function setBusy(controller) {
  stopping = controller;
  const isBusy = controller !== null;
  const hadFocus = find("#composer").contains(document.activeElement);
  find("#send").hidden = isBusy;
  find("#stop").hidden = !isBusy;
  if (hadFocus) prompt.focus();
  state.textContent = isBusy ? "answering" : "";
  find("#hint").hidden = turns.length > 0;
  if (isBusy) scrollTo(0, document.body.scrollHeight);
}

/** Scroll with the reply, unless the reader has scrolled up. */
function follow() {
  const page = document.documentElement;
  const below = page.scrollHeight - page.scrollTop - page.clientHeight;
  if (below < 120) page.scrollTop = page.scrollHeight;
}

/** As high as its text, up to the most that the style allows. */
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function onKey(event) {
  if (event.key === "Escape" && stopping && !find("dialog[open]")) stopping.abort();
  if (event.target !== prompt || event.key !== "Enter") return;
  if (event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
}

function startAgain() {
  stopping?.abort();
  turns = [];
  log.replaceChildren();
  showError("");
  find("#hint").hidden = false;
  prompt.focus();
}

async function showPlan() {
  try {
    plan ??= await getJson("plan");
    find("#plan-body").replaceChildren(...planNodes(plan));
    find("#plan").showModal();
  } catch (problem) {
    failed(problem, showPlan);
  }
}

find("#composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("#key").value.trim());
  find("#key-form").hidden = true;
  showError("");
  prompt.focus();
  afterKey();
});
find("#stop").addEventListener("click", () => stopping?.abort());
find("#new").addEventListener("click", startAgain);
find("#show-settings").addEventListener("click", () => find("#settings").showModal());
find("#show-plan").addEventListener("click", showPlan);
prompt.addEventListener("input", fit);
addEventListener("keydown", onKey);
keepDrops();
restoreSettings();
connect();
