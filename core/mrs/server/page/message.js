// One message of the conversation on the page, and what can be done with it.

import { sizeOf } from "./attachments.js";
import { copyButton, element } from "./dom.js";
import { showMarkdown } from "./markdown.js";

function button(text, label, onclick) {
  return element("button", { type: "button", "aria-label": label, onclick }, text);
}

/** Buttons that show the other messages in the place of this one, if there are some. */
function branches(message, siblings, show) {
  if (siblings.length < 2) return [];
  const place = siblings.indexOf(message);
  const step = (text, label, to) => {
    const made = button(text, label, () => show(siblings[to]));
    made.disabled = !siblings[to];
    return made;
  };
  return [
    element("span", { class: "branches", role: "group", "aria-label": "Versions" },
      step("‹", "Earlier version", place - 1),
      element("span", {}, `${place + 1} of ${siblings.length}`),
      step("›", "Later version", place + 1)),
  ];
}

/** A user's message: text as it is, images and files. */
export function userMessage(message, siblings, { edit, show }) {
  const { text, images = [], files = [] } = message;
  const pictures = images.map((url, index) =>
    element("img", { src: url, alt: `Image ${index + 1} of your message` }));
  const folded = files.map((file) =>
    element("details", {},
      element("summary", {}, `${file.name} · ${sizeOf(file.text)}`),
      element("pre", { tabindex: "0", role: "region", "aria-label": file.name }, file.text)));
  const body = element("div", { class: "bubble" },
    ...pictures, ...folded, ...(text ? [element("p", {}, text)] : []));
  const tools = element("span", { class: "tools" },
    ...branches(message, siblings, show),
    element("button", {
      type: "button",
      class: "edit",
      "aria-label": "Edit your message",
      onclick: () => editText(body, tools, text, edit),
    }, "Edit"));
  return element("article", { class: "user", "aria-label": "You" },
    element("h2", { class: "unseen" }, "You"), body, tools);
}

/** Puts a field in the place of a message; `edit` gets the new text. */
function editText(body, tools, text, edit) {
  const field = element("textarea", { "aria-label": "Edited message", rows: "4" });
  field.value = text;
  const restore = () => form.replaceWith(body, tools);
  const form = element("form", { class: "editor" },
    field,
    element("div", { class: "row" },
      element("button", { class: "main" }, "Send"),
      button("Cancel", "Cancel editing", restore)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    edit(field.value.trim());
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") restore();
  });
  tools.remove();
  body.replaceWith(form);
  field.focus();
}

/** A reply while it arrives and after; `show` draws at most once a frame. */
export class ReplyView {
  constructor(reply) {
    this.reply = reply;
    this.thoughts = element("div", { class: "markdown" });
    this.folded = element("details", { class: "thoughts", hidden: "" },
      element("summary", {}, "Thoughts"), this.thoughts);
    this.text = element("div", { class: "markdown" });
    this.note = element("span", { class: "note" });
    this.tools = element("span", { class: "tools" });
    this.node = element("article", { class: "reply", "aria-label": reply.model },
      element("h2", { class: "unseen" }, reply.model),
      this.folded, this.text,
      element("div", { class: "below" }, this.note, this.tools));
    this.frame = 0;
  }

  show() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { text, thoughts, note } = this.reply;
    this.folded.hidden = !thoughts;
    showMarkdown(this.thoughts, thoughts);
    showMarkdown(this.text, text);
    this.note.textContent = note;
    this.ondraw?.();
  }

  begin() {
    this.node.setAttribute("aria-busy", "true");
    this.tools.replaceChildren();
  }

  /** The reply is whole: `retry`, `resume` and `show` are what its buttons do. */
  end(siblings, { retry, resume, show }) {
    this.draw();
    this.node.setAttribute("aria-busy", "false");
    const { reply } = this;
    this.tools.replaceChildren(
      ...branches(reply, siblings, show),
      ...(resume && reply.isPartial && reply.text
        ? [button("Continue", "Continue this reply", resume)] : []),
      ...(reply.text ? [copyButton(() => reply.text, "Copy reply")] : []),
      button("Try again", undefined, retry));
  }
}
