// The chat: sends the conversation, shows the reply as it arrives.

import {
  acceptFiles, acceptImages, beingRead, hasAttachments, takeAttachments,
} from "./attachments.js";
import { Chats } from "./chats.js";
import { chat, countTokens, hasKey, useKey } from "./client.js";
import { Conversation, requestMessages } from "./conversation.js";
import { ReplyView, userMessage } from "./message.js";
import { Models, percent } from "./models.js";
import { planNodes } from "./plan.js";
import { requestFields, restoreSettings, systemPrompt } from "./settings.js";
import { welcome } from "./welcome.js";

const find = (selector) => document.querySelector(selector);
const [log, prompt, error, state, loading, spoken] =
  ["#messages", "#prompt", "#error", "#state", "#loading", "#spoken"].map(find);
const POLL_MS = 1000;
const SAVE_MS = 2000; // between two times that a reply is kept while it arrives
const MOST_SPOKEN = 1500; // characters of a reply that a screen reader gets at its end
const [SHOWN, DRAFT] = ["mrs-chat", "mrs-draft"]; // of this tab

const models = new Models();
let conversation = new Conversation();
let stopping = null; // the AbortController of the reply that arrives
let afterKey = null; // what the key was needed for
let polling = null; // the timer of the next try to reach the server

const chats = new Chats({
  open: (kept) => show(new Conversation(kept)),
  shown: () => conversation,
  startAgain,
  report: showError,
});

function showError(message, cause = "") {
  error.textContent = message;
  error.dataset.cause = cause;
  error.hidden = !message;
}

/** Says what the server is doing, with the share of the model that is loaded meanwhile. */
function setState(text, share) {
  state.textContent = share === undefined ? text : `loading, ${percent(share)}`;
  loading.hidden = share === undefined;
  if (share !== undefined) loading.value = share;
}

/** Shows what is wrong with files, or that nothing is any more. */
function showFileProblems(message) {
  if (message || error.dataset.cause === "files") showError(message, "files");
}

/** Shows an error; for a missing key it asks for one, with which `again` is tried. */
function failed(problem, again) {
  const needsKey = problem.status === 401;
  showError(needsKey && !hasKey() ? "" : problem.message);
  if (problem.status === 0) {
    models.plan = null; // another server may be there next
    connectLater();
  }
  if (!needsKey) return;
  afterKey = again;
  find("#key-form").hidden = false;
  find("#key").focus();
}

function connectLater() {
  clearTimeout(polling);
  polling = setTimeout(connect, POLL_MS);
}

/** Learns about the models; tries until the server answers and the chosen model is not loading. */
async function connect() {
  clearTimeout(polling);
  const wasLost = error.dataset.cause === "server";
  try {
    await models.refresh();
    const { status, progress } = models.chosen;
    if (status === "loading") connectLater();
    if (!stopping) setState("", status === "loading" ? progress : undefined);
    if (wasLost) showError("The server answers again: try again.");
    acceptImages(Boolean(models.plan?.vision));
  } catch (problem) {
    if (problem.status === 503 || problem.status === 0) {
      setState(problem.message);
      connectLater();
    } else failed(problem, connect);
  }
  showWelcome();
}

function showWelcome() {
  const box = find("#welcome");
  box.hidden = conversation.messages.length > 0;
  find("#hint").hidden = box.hidden;
  if (!box.hidden && models.all.length) box.replaceChildren(...welcome(models, propose));
}

function propose(question) {
  prompt.value = question;
  typed();
  prompt.focus();
}

function draw() {
  log.replaceChildren(...conversation.path().map((message) => viewOf(message).node));
  showWelcome();
}

function viewOf(message) {
  const siblings = conversation.siblings(message);
  if (message.role === "user") {
    const edit = (text) => unlessBusy(() => say({ ...message, text }, message.parent));
    return { node: userMessage(message, siblings, { edit, show: showVersion }) };
  }
  const view = new ReplyView(message);
  end(view);
  return view;
}

function end(view) {
  const { reply } = view;
  const isLast = reply.id === conversation.last;
  view.end(conversation.siblings(reply), {
    retry: () => unlessBusy(() => retry(reply)),
    resume: isLast && (() => unlessBusy(() => resume(reply, view))),
    show: showVersion,
  });
}

function unlessBusy(action) {
  if (!stopping) action();
}

function showVersion(message) {
  unlessBusy(() => {
    conversation.show(message);
    draw();
    chats.save(conversation);
  });
}

function show(other) {
  stopping?.abort();
  stopping = null;
  setBusy(null);
  conversation = other;
  sessionStorage.setItem(SHOWN, conversation.id);
  showError("");
  draw();
  chats.draw();
  scrollTo(0, document.body.scrollHeight);
}

function startAgain() {
  show(new Conversation());
  prompt.focus();
}

function send() {
  const text = prompt.value.trim();
  if (stopping || (!text && !hasAttachments())) return;
  const unread = beingRead();
  if (unread) return showFileProblems(`${unread} is being read: send the message after that.`);
  prompt.value = "";
  typed();
  say({ text, ...takeAttachments() }, conversation.last);
}

/** Adds what the user says after the message `parent`, and lets the model answer. */
function say({ text, images, files }, parent) {
  conversation.add({ role: "user", text, images, files }, parent);
  sessionStorage.setItem(SHOWN, conversation.id);
  draw();
  answer();
}

function retry(reply) {
  conversation.undo(reply);
  draw();
  answer();
}

/** Let the model answer the last message. */
function answer() {
  const path = conversation.path();
  const reply = conversation.add({
    role: "assistant", text: "", thoughts: "", note: "", model: models.name, isPartial: true,
  });
  const view = new ReplyView(reply);
  log.append(view.node);
  receive(view, path, {});
}

/** Let the model go on with a reply that was stopped, cut off or lost. */
function resume(reply, view) {
  reply.note = "";
  receive(view, conversation.path(), { continue_final_message: true });
}

async function receive(view, path, fields) {
  const { reply } = view;
  const [mine, controller] = [conversation, new AbortController()];
  view.ondraw = follow;
  view.begin();
  showError("");
  setBusy(controller);
  chats.save(mine);
  const saving = setInterval(() => chats.save(mine), SAVE_MS);
  const messages = requestMessages(path, systemPrompt());
  const body = { model: models.name, ...requestFields(), ...fields, messages };
  try {
    reply.isPartial = (await collect(view, chat(body, controller.signal))) === "length";
  } catch (problem) {
    const isStop = problem.name === "AbortError";
    const end = isStop ? "stopped" : `failed: ${problem.message}`;
    reply.isPartial = true;
    reply.note = [end, reply.note].filter(Boolean).join(" · ");
    if (!isStop) lost(problem, reply);
  }
  clearInterval(saving);
  if (stopping === controller) setBusy(null);
  chats.save(mine);
  if (mine === conversation) {
    end(view);
    speak(view);
  }
  if (models.all.length > 1) connect();
}

/** Lets a screen reader say that the reply has ended, and what it is. */
function speak({ reply, text }) {
  const heading = reply.isPartial ? "The reply is not complete" : "The reply is complete";
  const said = text.textContent;
  spoken.textContent = `${heading}: ${said.slice(0, MOST_SPOKEN)}${said[MOST_SPOKEN] ? "…" : ""}`;
}

/** Says what a reply that failed leaves. */
function lost(problem, reply) {
  failed(problem, () => unlessBusy(() => retry(reply)));
  if (problem.status !== 0) return;
  const kept = reply.text ? "What was written is kept; try again" : "Try again";
  const advice = `${kept} when the server is back.`;
  showError(`${problem.message} ${advice}`, "server");
}

/** Adds the chunks of a stream to a reply as they arrive; why it ended. */
async function collect(view, chunks) {
  const { reply } = view;
  const start = performance.now();
  let first = 0;
  let pieces = 0;
  let reason = "";
  for await (const { choices, usage, load_progress } of chunks) {
    if (!stopping?.signal.aborted) setState("answering", load_progress);
    const { delta, finish_reason } = choices[0] ?? { delta: {} };
    const added = (delta.content ?? "") + (delta.reasoning_content ?? "");
    reply.text += delta.content ?? "";
    reply.thoughts += delta.reasoning_content ?? "";
    reason = finish_reason ?? reason;
    if (added) {
      first ||= performance.now();
      pieces += 1;
      const rate = (pieces - 1) / ((performance.now() - first) / 1000);
      if (pieces > 1 && Number.isFinite(rate)) reply.note = `about ${rateText(rate)} tokens/s`;
    }
    if (usage) reply.note = figures(usage, first - start, reason);
    view.show();
  }
  return reason;
}

function figures(usage, first_ms, reason) {
  const planned = usage.planned_compl_tok_per_sec?.map(rateText).join("–");
  return [
    `${usage.completion_tokens} tokens`,
    `${rateText(usage.avg_compl_tok_per_sec)} tokens/s`,
    planned && `planned ${planned}`,
    first_ms > 0 && `first token after ${(first_ms / 1000).toFixed(2)} s`,
    reason === "length" && "cut off at the limit of tokens",
  ].filter(Boolean).join(" · ");
}

/** Tokens per second for people: "8.4", "1,201". */
function rateText(rate) {
  return rate.toLocaleString(undefined, { maximumFractionDigits: rate < 20 ? 1 : 0 });
}

function setBusy(controller) {
  stopping = controller;
  const isBusy = controller !== null;
  const hadFocus = find("#composer").contains(document.activeElement);
  find("#send").hidden = isBusy;
  find("#stop").hidden = !isBusy;
  if (hadFocus) prompt.focus();
  setState(isBusy ? "answering" : "");
  if (isBusy) scrollTo(0, document.body.scrollHeight);
}

/** Scroll with the reply, unless the reader has scrolled up. */
function follow() {
  const page = document.documentElement;
  const below = page.scrollHeight - page.scrollTop - page.clientHeight;
  if (below < 120) page.scrollTop = page.scrollHeight;
}

/** As high as its text, up to the most that the style allows; a reload leaves the text. */
function typed() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
  sessionStorage.setItem(DRAFT, prompt.value);
}

function onKey(event) {
  const action = actionOf(event);
  if (!action) return;
  event.preventDefault();
  action();
}

/** What a key does; the settings list them. */
function actionOf({ key, target, shiftKey, ctrlKey, metaKey, isComposing }) {
  if (isComposing) return null;
  if (ctrlKey || metaKey) {
    const isModal = find("dialog:modal") !== null;
    if (key.toLowerCase() === "o" && shiftKey && !isModal) return startAgain;
    if (key === "k" && (!isModal || find("#chats:modal"))) return () => chats.search();
    if (key === "/" && !isModal) return showKeys;
  }
  if (key === "Escape" && stopping && !find("dialog:modal")) return () => stopping.abort();
  if (target !== prompt) return null;
  if (key === "Enter" && !shiftKey) return send;
  if (key === "ArrowUp" && !prompt.value && !stopping) return editLast;
  return null;
}

function editLast() {
  [...log.querySelectorAll(".user .edit")].at(-1)?.click();
}

function showKeys() {
  find("#settings").showModal();
  find("#keys").focus();
}

/** The tokens of a file's text and the model's context; neither without a model to ask. */
async function tokensOf(text) {
  if (models.all.length === 0 || models.chosen.status !== "loaded") return {};
  return countTokens(models.name, text).catch(() => ({})); // an error shows when it is sent
}

async function showPlan() {
  try {
    if (!models.plan) await models.refresh();
    const unloaded = "The plan is shown once the model is loaded: ask it something.";
    find("#plan-body").replaceChildren(...(models.plan ? planNodes(models.plan) : [unloaded]));
    find("#plan").showModal();
  } catch (problem) {
    failed(problem, showPlan);
  }
}

async function restore() {
  prompt.value = sessionStorage.getItem(DRAFT) ?? "";
  if (prompt.value) typed();
  await chats.start();
  const kept = await chats.load(sessionStorage.getItem(SHOWN));
  if (kept && !conversation.messages.length) show(new Conversation(kept));
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
find("#models").addEventListener("change", ({ target }) => {
  models.choose(target.value);
  connect();
});
find("#stop").addEventListener("click", () => stopping?.abort());
find("#new").addEventListener("click", startAgain);
find("#show-settings").addEventListener("click", () => find("#settings").showModal());
find("#show-plan").addEventListener("click", showPlan);
prompt.addEventListener("input", typed);
addEventListener("keydown", onKey);
acceptFiles(showFileProblems, tokensOf);
restoreSettings();
restore();
connect();
