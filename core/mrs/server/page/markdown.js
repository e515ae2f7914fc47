// Markdown as DOM nodes. What a model writes is hostile: its HTML is text, and what the libraries
// make of the rest passes DOMPurify. Images stay links, so that no reply makes the browser fetch
// something.

import { copyButton } from "./dom.js";
import { DOMPurify, MarkdownIt, highlighter } from "./libraries.js";
import { drawVariants, formulas } from "./math.js";

const MOST_COLORED = 50_000; // characters of code

const parser = new MarkdownIt({ linkify: true, breaks: true }).use(formulas).use(taskLists);
const { escapeHtml } = parser.utils;
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = (url) => /^(https?:|mailto:)/i.test(url);

Object.assign(parser.renderer.rules, {
  fence: code,
  code_block: code,
  table_open: () => '<div class="scroll" role="region" aria-label="Table" tabindex="0"><table>',
  table_close: () => "</table></div>",
  th_open: cell,
  td_open: cell,
  heading_open: heading,
  heading_close: heading,
  image: (tokens, index) => {
    const { attrs, content } = tokens[index];
    const address = escapeHtml(attrs.find(([name]) => name === "src")[1]);
    return `<a href="${address}">${escapeHtml(content) || address}</a>`;
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});
const ALLOWED = {
  USE_PROFILES: { html: true, mathMl: true },
  ADD_TAGS: ["semantics", "annotation"], // of formulas, for who copies or hears them
  FORBID_TAGS: ["img", "picture", "audio", "video", "source", "style", "form", "input", "button"],
  FORBID_ATTR: ["style", "id", "name"],
  RETURN_DOM_FRAGMENT: true,
};

/** Shows `text` in `container`; blocks that have not changed stay the same nodes. */
export function showMarkdown(container, text) {
  const environment = {};
  const blocks = split(parser.parse(text, environment));
  const lines = text.split("\n");
  // Links may refer to definitions that come later.
  const numReferences = Object.keys(environment.references ?? {}).length;
  const keys = blocks.map((tokens) => {
    const { type, map } = tokens[0];
    return [type, numReferences, ...lines.slice(...map)].join("\n");
  });
  const before = container.blockKeys ?? [];
  let same = 0;
  while (same < keys.length && keys[same] === before[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...build(blocks.slice(same), environment));
  container.blockKeys = keys;
}

/** The tokens of each block that is in no other one. */
function split(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

/** Markup as nodes, without what could run or fetch something. */
export function clean(html) {
  return DOMPurify.sanitize(html, ALLOWED);
}

/** A node for each of the blocks, all of which are cleaned at once: that costs much once. */
function build(blocks, environment) {
  const html = (tokens) => parser.renderer.render(tokens, parser.options, environment);
  const fragment = clean(blocks.map((tokens) => `<div>${html(tokens)}</div>`).join(""));
  for (const block of fragment.querySelectorAll(".code")) {
    const text = block.querySelector("code").textContent;
    block.querySelector(".bar").append(copyButton(() => text, "Copy code"));
  }
  drawVariants(fragment);
  return [...fragment.children].map((node) => node.firstElementChild ?? node);
}

function code(tokens, index) {
  const { content, info } = tokens[index];
  const text = content.replace(/\n$/, "");
  const language = info.trim().split(/\s/)[0];
  const label = escapeHtml(language ? `Code, ${language}` : "Code");
  return `<div class="code"><div class="bar"><span>${escapeHtml(language)}</span></div>` +
    `<pre tabindex="0" role="region" aria-label="${label}"><code>${colored(text, language)}</code>` +
    "</pre></div>";
}

function colored(text, language) {
  const isKnown = highlighter.getLanguage(language) && text.length <= MOST_COLORED;
  return isKnown ? highlighter.highlight(text, { language }).value : escapeHtml(text);
}

/** A cell of a table, whose side is a class: the page's policy forbids styles. */
function cell(tokens, index) {
  const { tag, attrs } = tokens[index];
  const side = attrs?.find(([name]) => name === "style")?.[1].replace("text-align:", "");
  return side ? `<${tag} class="${side}">` : `<${tag}>`;
}

/** The headings of a reply are below those of the page. */
function heading(tokens, index) {
  const { tag, nesting } = tokens[index];
  return `<${nesting < 0 ? "/" : ""}h${Math.min(Number(tag[1]) + 2, 6)}>`;
}

/** Items of lists that begin with [ ] or [x] begin with a box. */
function taskLists(markdown) {
  markdown.core.ruler.before("inline", "tasks", ({ tokens }) => {
    for (const [index, token] of tokens.entries()) {
      const isFirst = tokens[index - 2]?.type === "list_item_open";
      const box = isFirst && token.type === "inline" && /^\[([ xX])\](?=\s)/.exec(token.content);
      if (!box) continue;
      token.content = token.content.slice(box[0].length);
      tokens[index - 1].meta = { isDone: box[1] !== " " };
    }
  });
  markdown.renderer.rules.paragraph_open = (tokens, index) => {
    const { hidden, meta } = tokens[index];
    return (hidden ? "" : "<p>") + (meta ? taskBox(meta.isDone) : "");
  };
}

function taskBox(isDone) {
  const [character, label] = isDone ? ["☑", "Done:"] : ["☐", "To do:"];
  return `<span class="task" role="img" aria-label="${label}">${character}</span>`;
}
