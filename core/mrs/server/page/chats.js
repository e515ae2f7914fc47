// The drawer of chats that this browser keeps: list, search, rename, delete, export, import. On a
// wide window it stays beside the chat.

import { Conversation, toMarkdown } from "./conversation.js";
import { counted, element } from "./dom.js";
import { readChats } from "./imported.js";
import { Store, headOf } from "./store.js";

const WIDE = matchMedia("(min-width: 70rem)");
const FORGETS = "mrs-forgets";
const WAS_CLOSED = "mrs-chats-closed";

const find = (selector) => document.querySelector(selector);
const [drawer, list, search, remember, note, file] =
  ["#chats", "#chat-list", "#search", "#remember", "#chats-note", "#chats-file"].map(find);

export class Chats {
  /** `open` shows a conversation's plain value, `shown` gives the one that is shown. */
  constructor({ open, shown, startAgain, report }) {
    Object.assign(this, { open, shown, startAgain, report });
    this.heads = new Map();
    this.deleted = new Set(); // what of them still arrives is not kept
    this.store = null;
    remember.checked = !localStorage.getItem(FORGETS);
    remember.addEventListener("change", () => this.#remember());
    search.addEventListener("input", () => this.draw());
    find("#show-chats").addEventListener("click", () => this.#toggle());
    find("#close-chats").addEventListener("click", () => this.#close());
    find("#delete-all").addEventListener("click", () => this.#deleteAll());
    find("#export-all").addEventListener("click", () => this.#exportAll());
    find("#import").addEventListener("click", () => file.click());
    file.addEventListener("change", () => this.#import());
    WIDE.addEventListener("change", () => this.#adapt());
    this.#adapt();
  }

  /** Opens the store; without one, chats last as long as the page. */
  async start() {
    try {
      this.store = await Store.open();
      for (const head of await this.store.heads()) this.heads.set(head.id, head);
    } catch (problem) {
      note.textContent = `This browser keeps no chats: ${problem.message}`;
      return;
    }
    this.draw();
    await this.save(this.shown()); // which may have begun before
  }

  get keeps() {
    return this.store !== null && remember.checked;
  }

  /** The plain value of a chat, if it is kept. */
  async load(id) {
    return this.heads.has(id) ? this.store.load(id) : undefined;
  }

  /** Keeps a conversation as it is now. */
  async save(conversation) {
    const isWanted = conversation.messages.length && !this.deleted.has(conversation.id);
    if (!this.keeps || !isWanted) return;
    try {
      await this.store.save(conversation);
      this.heads.set(conversation.id, headOf(conversation));
      this.draw();
    } catch (problem) {
      this.report(problem.message);
    }
  }

  draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const matching = [...this.heads.values()]
      .filter((head) => words.every((word) => head.words.includes(word)))
      .sort((a, b) => b.updated - a.updated);
    list.replaceChildren(...matching.map((head) => this.#item(head)));
    const isEmpty = this.heads.size === 0;
    for (const button of ["#export-all", "#delete-all"]) find(button).hidden = isEmpty;
    const nothing = isEmpty ? "Chats appear here." : "No chat has these words.";
    note.textContent = matching.length ? "" : nothing;
  }

  #item(head) {
    const isShown = head.id === this.shown().id;
    const open = element("button", {
      type: "button",
      class: "chat",
      "aria-current": isShown ? "true" : undefined,
      onclick: () => this.#open(head.id),
    }, element("span", {}, head.title), element("time", {}, day(head.updated)));
    return element("li", {}, open, ...(isShown ? [this.#tools()] : []));
  }

  /** What can be done with the chat that is shown. */
  #tools() {
    const tool = (text, label, onclick) =>
      element("button", { type: "button", "aria-label": label, onclick }, text);
    return element("div", { class: "tools" },
      tool("Rename", "Rename this chat", () => this.#rename()),
      tool("Markdown", "Export this chat as Markdown", () => this.#export("md", toMarkdown)),
      tool("JSON", "Export this chat as JSON", () => this.#export("json", asJson)),
      tool("Delete", "Delete this chat", () => this.#delete()));
  }

  async #open(id) {
    this.open(await this.store.load(id));
    if (!WIDE.matches) drawer.close();
  }

  #rename() {
    const conversation = this.shown();
    const title = prompt("Title of this chat", conversation.title)?.trim();
    if (!title) return;
    conversation.title = title;
    this.save(conversation);
  }

  #export(ending, write) {
    const conversation = this.shown();
    download(`${conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-")}.${ending}`, write(conversation));
  }

  async #exportAll() {
    download("chats.json", asJson(await this.store.all()));
  }

  async #import() {
    try {
      if (!this.keeps) throw new Error("This browser keeps no chats: tick “Keep chats in this browser”.");
      note.textContent = "Importing …";
      const said = await this.#add(await readChats(file.files[0]));
      this.draw();
      note.textContent = said;
    } catch (problem) {
      this.draw();
      note.textContent = problem.message;
    }
    file.value = "";
  }

  /** Keeps chats that are not kept yet; says how many there were. Raises StoreFull. */
  async #add(conversations) {
    const kept = conversations.filter(({ id, updated }) => this.heads.get(id)?.updated === updated);
    const added = conversations.filter((each) => !kept.includes(each));
    for (const conversation of added) {
      if (this.heads.has(conversation.id)) conversation.id = new Conversation().id;
      await this.store.save(conversation);
      this.deleted.delete(conversation.id);
      this.heads.set(conversation.id, headOf(conversation));
    }
    if (added.length === 1) this.open(added[0]);
    const before = kept.length ? `; ${counted(kept.length, "chat")} had been here before` : "";
    return `${counted(added.length, "chat")} imported${before}.`;
  }

  async #delete() {
    const { id, title } = this.shown();
    if (!confirm(`Delete the chat “${title}”?`)) return;
    await this.#forget([id], () => this.store.remove(id));
  }

  async #deleteAll() {
    if (!confirm(`Delete all ${this.heads.size} chats that this browser keeps?`)) return;
    await this.#forget([...this.heads.keys(), this.shown().id], () => this.store.clear());
  }

  async #forget(ids, remove) {
    for (const id of ids) this.deleted.add(id);
    this.startAgain();
    await remove();
    for (const id of ids) this.heads.delete(id);
    this.draw();
  }

  #remember() {
    if (remember.checked) localStorage.removeItem(FORGETS);
    else localStorage.setItem(FORGETS, "true");
    this.save(this.shown());
  }

  /** Opens the drawer, and searches it. */
  search() {
    if (!drawer.open) this.#toggle();
    search.select();
  }

  #toggle() {
    if (drawer.open) return this.#close();
    if (!WIDE.matches) return drawer.showModal();
    localStorage.removeItem(WAS_CLOSED);
    this.#dock();
  }

  #adapt() {
    document.body.classList.remove("docked");
    if (drawer.open) drawer.close();
    if (WIDE.matches && !localStorage.getItem(WAS_CLOSED)) this.#dock();
  }

  /** Shows the drawer beside the chat, which keeps the focus. */
  #dock() {
    const focused = document.activeElement;
    drawer.show();
    document.body.classList.add("docked");
    (focused === document.body ? find("#prompt") : focused).focus();
  }

  /** The user closes the drawer; beside the chat it then stays away. */
  #close() {
    if (document.body.classList.contains("docked")) localStorage.setItem(WAS_CLOSED, "true");
    document.body.classList.remove("docked");
    drawer.close();
  }
}

function asJson(value) {
  return `${JSON.stringify(value, null, 2)}\n`;
}

function day(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
