// Markdown as DOM nodes: headings, lists, quotes, tables, code, links, emphasis.
// Images stay links, so that no reply makes the browser fetch something.

import { copyButton, element } from "./dom.js";

const DEPTH = 8; // of nested quotes, lists and emphasis; deeper ones stay text
const FENCE = /^\s*(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INDENTED = /^(\s{2,}|\t)\S/;

/** Shows `text` in `container`; blocks that have not changed stay the same nodes. */
export function showMarkdown(container, text) {
  const blocks = split(text.split("\n"));
  const keys = blocks.map((block) => JSON.stringify(block));
  const before = container.blockKeys ?? [];
  let same = 0;
  while (same < keys.length && keys[same] === before[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...blocks.slice(same).map((block) => build(block, 0)));
  container.blockKeys = keys;
}

/** The blocks of some lines, each as [kind, lines]. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const kind = kindOf(lines, at);
    const end = END[kind](lines, at);
    blocks.push([kind, lines.slice(at, end)]);
    at = end;
  }
  return blocks;
}

function kindOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return "table";
  return "paragraph";
}

/** The first index from `at` whose line does not satisfy `belongs`. */
function until(lines, at, belongs) {
  let end = at;
  while (end < lines.length && belongs(end)) end += 1;
  return end;
}

const END = {
  code: codeEnd,
  list: listEnd,
  heading: (lines, at) => at + 1,
  rule: (lines, at) => at + 1,
  quote: (lines, at) => until(lines, at, (i) => QUOTE.test(lines[i])),
  table: (lines, at) => until(lines, at, (i) => lines[i].includes("|")),
  paragraph: (lines, at) =>
    until(lines, at + 1, (i) => lines[i].trim() && kindOf(lines, i) === "paragraph"),
};

function codeEnd(lines, at) {
  const fence = FENCE.exec(lines[at])[1];
  const isOpen = (i) => {
    const line = lines[i].trim();
    return line.length < fence.length || line !== fence[0].repeat(line.length);
  };
  return Math.min(until(lines, at + 1, isOpen) + 1, lines.length);
}

function listEnd(lines, at) {
  const isOrdered = (line) => /\d/.test(ITEM.exec(line)[2]);
  const indent = ITEM.exec(lines[at])[1].length;
  const belongs = (line) => {
    const item = RULE.test(line) ? null : ITEM.exec(line);
    if (item && item[1].length <= indent + 1) return isOrdered(line) === isOrdered(lines[at]);
    return INDENTED.test(line);
  };
  return until(lines, at, (i) => {
    if (lines[i].trim()) return belongs(lines[i]);
    return i + 1 < lines.length && belongs(lines[i + 1]);
  });
}

function build([kind, lines], depth) {
  if (depth > DEPTH) return element("p", {}, lines.join("\n"));
  return BUILD[kind](lines, depth);
}

const BUILD = {
  code,
  list,
  table,
  rule: () => element("hr"),
  paragraph: (lines) => element("p", {}, ...inline(lines.join("\n").trim())),
  heading: ([line]) => {
    const [, marks, text] = HEADING.exec(line);
    return element(`h${Math.min(marks.length + 2, 6)}`, {}, ...inline(text));
  },
  quote: (lines, depth) => {
    const inner = split(lines.map((line) => line.replace(QUOTE, "")));
    return element("blockquote", {}, ...inner.map((block) => build(block, depth + 1)));
  },
};

function code(lines) {
  const [, fence, info] = FENCE.exec(lines[0]);
  const last = lines.at(-1).trim();
  const isClosed = lines.length > 1 && last.startsWith(fence) && !last.replaceAll(fence[0], "");
  const indent = /^\s*/.exec(lines[0])[0];
  const text = lines
    .slice(1, isClosed ? -1 : undefined)
    .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line))
    .join("\n");
  const language = info.trim().split(/\s/)[0];
  const label = language ? `Code, ${language}` : "Code";
  return element(
    "div",
    { class: "code" },
    element("div", { class: "bar" },
      element("span", {}, language),
      copyButton(() => text, "Copy code")),
    element("pre", { tabindex: "0", role: "region", "aria-label": label },
      element("code", {}, text)),
  );
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length + 1) {
      items.push({ width: found[0].length, lines: [line.slice(found[0].length)] });
    } else {
      const { width, lines: own } = items.at(-1);
      own.push(line.slice(Math.min(width, /^\s*/.exec(line)[0].length)));
    }
  }
  const attributes = /\d/.test(mark) ? { start: parseInt(mark) } : {};
  const rows = items.map((each) => element("li", {}, ...itemNodes(each.lines, depth)));
  return element(/\d/.test(mark) ? "ol" : "ul", attributes, ...rows);
}

/** What an item has; text that no empty line parts from the rest is no paragraph. */
function itemNodes(lines, depth) {
  const isTight = !lines.some((line, i) => !line.trim() && i < lines.length - 1);
  return split(lines).flatMap((block) => {
    const node = build(block, depth + 1);
    return isTight && block[0] === "paragraph" ? [...node.childNodes] : [node];
  });
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|");
  const sides = cells(lines[1]).map((cell) => side(cell.trim()));
  const row = (tag, line) =>
    element("tr", {}, ...cells(line).map((cell, column) =>
      element(tag, { class: sides[column] }, ...inline(cell.trim()))));
  const body = lines.slice(2).map((line) => row("td", line));
  const head = element("thead", {}, row("th", lines[0]));
  return element("div", { class: "scroll" },
    element("table", {}, head, element("tbody", {}, ...body)));
}

function side(rule) {
  if (!rule.endsWith(":")) return undefined;
  return rule.startsWith(":") ? "center" : "right";
}

// Lengths are bounded, so that marks that nothing closes cost little.
const LINK_TARGET =
  /\(\s?<?(?<target>[^\s<>()]{0,2000}(?:\([^\s<>()]{0,500}\))?)>?(?: "[^"]{0,500}")?\s?\)/.source;
const INLINE = new RegExp(
  [
    /\\(?<escaped>[!-'*-/:-@^-`{-~])/,
    /(?<ticks>`+)(?<code>[^]{0,2000}?[^`])\k<ticks>(?!`)/,
    /\*\*(?=\S)(?<strong>[^]{0,500}?\S)\*\*/,
    /\*(?=[^\s*])(?<star>[^]{0,500}?[^\s*])\*(?!\*)/,
    /(?<!\w)_(?=[^\s_])(?<under>[^]{0,500}?[^\s_])_(?!\w)/,
    /~~(?=\S)(?<struck>[^]{0,500}?\S)~~/,
    /!?\[(?<label>[^\]]{0,500})\]/.source + LINK_TARGET,
    /(?<address>https?:\/\/[^\s<>"'`]{0,2000}[^\s<>"'`.,;:!?)\]*_])/,
  ]
    .map((each) => each.source ?? each)
    .join("|"),
  "g",
);

function inline(text, depth = 0) {
  if (depth > DEPTH) return [text];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, match.index), mark(match, depth + 1));
    at = match.index + match[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

function mark({ 0: whole, groups }, depth) {
  const { escaped, code, strong, star, under, struck, label, target, address } = groups;
  if (escaped) return escaped;
  if (code) return element("code", {}, code);
  if (strong) return element("strong", {}, ...inline(strong, depth));
  if (star ?? under) return element("em", {}, ...inline(star ?? under, depth));
  if (struck) return element("del", {}, ...inline(struck, depth));
  if (address) return link(address, [address]);
  return /^(https?:|mailto:)/i.test(target) ? link(target, inline(label || target, DEPTH)) : whole;
}

function link(target, nodes) {
  return element("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, ...nodes);
}
