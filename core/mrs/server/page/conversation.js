// A chat: a tree of messages, of which one path is shown. Editing a message or trying a reply again
// adds a branch. Has no DOM.

const TITLE = 60; // characters

export class Conversation {
  constructor({ id, title = "", created = Date.now(), updated = created, messages, last } = {}) {
    this.id = id ?? `${created.toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
    this.title = title;
    this.created = created;
    this.updated = updated;
    this.messages = messages ?? []; // each has its place as its id, and that of its parent
    this.last = last ?? null; // the id of the message at the end of the path
  }

  /** Adds a message after the one whose id is `parent`, and shows it. */
  add(message, parent = this.last) {
    const added = { ...message, id: this.messages.length, parent };
    this.messages.push(added);
    this.last = added.id;
    this.updated = Date.now();
    this.title ||= titleOf(added);
    return added;
  }

  /** The messages from the first one to `end`. */
  path(end = this.last) {
    const path = [];
    for (let id = end; id !== null; id = this.messages[id].parent) path.unshift(this.messages[id]);
    return path;
  }

  /** All messages in the place of `message`, oldest first. */
  siblings(message) {
    return this.messages.filter(({ parent }) => parent === message.parent);
  }

  /** Shows `message`, and the newest one of those after it with what leads there. */
  show(message) {
    this.last = this.messages.findLast(({ id }) => this.path(id).includes(message)).id;
  }

  /** Goes back to before `reply`, of which nothing stays if it has no text. */
  undo(reply) {
    this.last = reply.parent;
    if (!reply.text && reply.id === this.messages.length - 1) this.messages.pop();
  }

  toJSON() {
    const { id, title, created, updated, messages, last } = this;
    return { id, title, created, updated, messages, last };
  }
}

function titleOf({ text, files = [] }) {
  const line = text.trim().split("\n")[0] || files[0]?.name || "Images";
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line;
}

/** The messages of a request: what the server has answered, and the end of `path`. */
export function requestMessages(path, system) {
  const said = path.filter((message, index) => {
    const next = path[index + 1];
    const isUser = message.role === "user";
    return isUser ? !next || next.text : message.text;
  });
  const before = system ? [{ role: "system", content: system }] : [];
  return [...before, ...said.map(asRequested)];
}

function asRequested({ role, text, images = [], files = [], thoughts }) {
  if (role === "assistant") return { role, content: text, reasoning_content: thoughts || null };
  const whole = [...files.map(fenced), text].filter(Boolean).join("\n\n");
  if (!images.length) return { role, content: whole };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...parts, { type: "text", text: whole }] };
}

/** A file as a block of code, whose fence is longer than any in it. */
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  const [, ending] = /\.(\w+)$/.exec(name) ?? ["", ""];
  return `${name}:\n${fence}${ending}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** The path that is shown, as Markdown. */
export function toMarkdown(conversation) {
  const parts = conversation.path().map(({ role, model, text, images = [], files = [], thoughts }) => {
    const quoted = thoughts && `Thoughts:\n\n${thoughts}`.replace(/^/gm, "> ");
    const attached = [...images.map(() => "*(an image)*"), ...files.map(fenced)];
    const heading = `## ${role === "user" ? "You" : model}`;
    return [heading, ...attached, quoted, text].filter(Boolean).join("\n\n");
  });
  return `${[`# ${conversation.title}`, ...parts].join("\n\n")}\n`;
}
