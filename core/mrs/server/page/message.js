// One message of the conversation on the page.

import { copyButton, element } from "./dom.js";
import { showMarkdown } from "./markdown.js";

/** Shows a user's message: text as it is, and images. */
export function userMessage(message) {
  const images = message.images.map((url, index) =>
    element("img", { src: url, alt: `Image ${index + 1} of your message` }));
  return element("article", { class: "user", "aria-label": "You" },
    element("h2", { class: "unseen" }, "You"),
    ...images,
    element("p", {}, message.text));
}

/** A reply while it arrives and after; `show` draws at most once a frame. */
export class ReplyView {
  constructor(name) {
    this.thoughts = element("div", { class: "markdown" });
    this.folded = element("details", { class: "thoughts", hidden: "" },
      element("summary", {}, "Thoughts"), this.thoughts);
    this.text = element("div", { class: "markdown" });
    this.note = element("span", { class: "note" });
    this.tools = element("span", { class: "tools" });
    this.node = element("article", { class: "reply", "aria-label": name, "aria-busy": "true" },
      element("h2", { class: "unseen" }, name),
      this.folded, this.text,
      element("div", { class: "below" }, this.note, this.tools));
    this.frame = 0;
  }

  show(reply) {
    this.reply = reply;
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

  end(reply, again) {
    this.reply = reply;
    this.draw();
    this.node.setAttribute("aria-busy", "false");
    this.tools.replaceChildren(
      copyButton(() => reply.text, "Copy reply"),
      element("button", { type: "button", onclick: again }, "Try again"));
  }
}
