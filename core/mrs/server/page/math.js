// Formulas of replies: TeX between \( \), \[ \], $ $ or $$ $$, as MathML.

import { katex } from "./libraries.js";

const MOST = 5000; // characters of a formula
const CLOSING = { $$: "$$", "\\[": "\\]", "\\(": "\\)" };
// Prices are no formulas: in "$5 and $6" a space is before the second dollar, and a digit after it.
const BETWEEN_DOLLARS = /\$(?!\s)((?:\\[^]|[^\\$]){1,2000})(?<!\s)\$(?!\d)/y;
// A line does not begin with what ends a part of a sentence.
const ENDING = /[.,;:?)]+/y;
const MOST_LINES = 200;
const OPTIONS = {
  output: "mathml",
  throwOnError: true,
  strict: "ignore",
  maxSize: 50,
  maxExpand: 500,
};

/** A plugin of markdown-it. */
export function formulas(parser) {
  parser.inline.ruler.before("escape", "formula", inline);
  parser.block.ruler.before("fence", "formula", block, {
    alt: ["paragraph", "reference", "blockquote", "list"],
  });
  parser.renderer.rules.formula = (tokens, index) => {
    const { content, meta } = tokens[index];
    const math = toMathML(content, meta.isDisplayed, parser.utils.escapeHtml);
    return meta.ending ? `<span class="joined">${math}${meta.ending}</span>` : math;
  };
}

function inline(state, silent) {
  const { src, pos } = state;
  const opening = src.slice(pos, pos + 2);
  let end = closingAt(state, CLOSING[opening]);
  let tex = src.slice(pos + 2, end);
  if (end < 0) {
    BETWEEN_DOLLARS.lastIndex = pos;
    const match = BETWEEN_DOLLARS.exec(src);
    if (match === null) return false;
    tex = match[1];
    end = pos + match[0].length - 2;
  }
  if (!tex.trim()) return false;
  const isDisplayed = opening === "$$" || opening === "\\[";
  ENDING.lastIndex = end + 2;
  const ending = isDisplayed ? "" : (ENDING.exec(src)?.[0] ?? "");
  if (!silent) add(state, tex, isDisplayed, ending);
  state.pos = end + 2 + ending.length;
  return true;
}

/** Where a formula ends; -1 if it does not, which is looked up once. */
function closingAt(state, closing) {
  state.neverClosed ??= new Set([undefined]);
  if (state.neverClosed.has(closing)) return -1;
  const end = state.src.indexOf(closing, state.pos + 2);
  if (end < 0) state.neverClosed.add(closing);
  return end;
}

/** Lines that begin with \[ or $$, up to one that ends with what closes it. */
function block(state, startLine, endLine, silent) {
  const lineAt = (line) =>
    state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trim();
  const first = lineAt(startLine);
  const opening = first.slice(0, 2);
  const closing = CLOSING[opening];
  if (!closing || opening === "\\(" || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [];
  for (let line = startLine; line < Math.min(endLine, startLine + MOST_LINES); line += 1) {
    const text = line === startLine ? first.slice(2) : lineAt(line);
    if (line > startLine && state.sCount[line] < state.blkIndent) return false;
    lines.push(text);
    if (!text.endsWith(closing)) continue;
    if (silent) return true;
    add(state, lines.join("\n").slice(0, -2), true).map = [startLine, line + 1];
    state.line = line + 1;
    return true;
  }
  return false;
}

function add(state, content, isDisplayed, ending = "") {
  const token = state.push("formula", "", 0);
  token.content = content;
  token.meta = { isDisplayed, ending };
  return token;
}

/** A formula as MathML; as code, if it is wrong. */
function toMathML(tex, displayMode, escape) {
  const source = `<code>${escape(tex.trim())}</code>`;
  let math = source;
  try {
    if (tex.length <= MOST) math = katex.renderToString(tex, { ...OPTIONS, displayMode });
  } catch {
    math = source;
  }
  return displayMode ? `<span class="formula">${math}</span>` : math;
}

// Browsers draw these variants only as characters of their own.
const VARIANTS = {
  "double-struck": [0x1d538, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  fraktur: [0x1d504, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
  script: [
    0x1d49c,
    { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  ],
};

/** Replaces letters of these variants in `node` by their characters. */
export function drawVariants(node) {
  for (const [variant, [first, others]] of Object.entries(VARIANTS)) {
    const character = (letter) => {
      const place = letter.charCodeAt(0) - (letter < "a" ? 65 : 71); // "a" follows the 26 capitals
      return others[letter] ?? String.fromCodePoint(first + place);
    };
    for (const letters of node.querySelectorAll(`[mathvariant=${variant}]`)) {
      letters.textContent = letters.textContent.replace(/[A-Za-z]/g, character);
    }
  }
}
