// What goes with the next message: images as data: URLs, text files and PDFs as text. They are
// chosen, dropped or pasted.

import { counted, element } from "./dom.js";
import { pdfText } from "./pdf.js";

const MIB = 1 << 20;
const MOST_FILES = 20; // of a message
const MOST_IMAGE_BYTES = 20 * MIB;
const MOST_PDF_BYTES = 50 * MIB;
const MOST_TEXT_BYTES = MIB;

const list = document.querySelector("#attachments");
const file = document.querySelector("#file");
// {name, url} of an image, {name, text, tokens} of a file, {name} of one that is being read
let attached = [];
let seesImages = false;

/** Takes files from now on; `report` gets what is wrong with one. `count` gives the tokens of a
 * text and the model's context, both undefined if the model is not loaded. */
export function acceptFiles(report, count) {
  const add = (files) => addAll(files, report, count);
  document.querySelector("#attach").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    await add(file.files);
    file.value = "";
  });
  addEventListener("paste", ({ clipboardData }) => {
    // What is copied from documents is text, beside which some programs put a picture of it.
    if (!clipboardData.getData("text/plain")) add(clipboardData.files);
  });
  addEventListener("dragenter", ({ dataTransfer }) => {
    document.body.classList.toggle("dropping", dataTransfer.types.includes("Files"));
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault(); // or the file would replace the page
    add(event.dataTransfer.files);
  });
}

/** Whether the model reads images. */
export function acceptImages(accepts) {
  seesImages = accepts;
  const things = accepts ? "images, PDFs or text files" : "PDFs or text files";
  document.querySelector("#drop-hint").textContent = `or drop ${things} here`;
}

export function hasAttachments() {
  return attached.length > 0;
}

/** The name of a file that is being read; undefined without one. */
export function beingRead() {
  return attached.find(isBeingRead)?.name;
}

/** The images and files of the message that is sent now. */
export function takeAttachments() {
  const taken = attached;
  attached = [];
  show();
  return {
    images: taken.filter(({ url }) => url).map(({ url }) => url),
    files: taken.filter(({ url }) => !url).map(({ name, text }) => ({ name, text })),
  };
}

function isBeingRead({ url, text }) {
  return url === undefined && text === undefined;
}

async function addAll(files, report, count) {
  const problems = [];
  for (const each of [...files]) { // the picker's list changes
    const entry = { name: each.name };
    attached.push(entry);
    show();
    try {
      if (attached.length > MOST_FILES) throw new Error(`is left out: a message takes ${MOST_FILES} files`);
      const read = await contentOf(each);
      if (read.text !== undefined) read.tokens = await tokensThatFit(read.text, count);
      Object.assign(entry, read);
    } catch (problem) {
      problems.push(`${each.name} ${problem.message}.`);
      attached = attached.filter((other) => other !== entry);
    }
    show();
  }
  report(problems.join(" "));
}

/** Raises Error, whose message continues the file's name. */
async function contentOf(blob) {
  const { name, size, type } = blob;
  if (type.startsWith("image/") && !type.includes("svg")) {
    if (!seesImages) throw new Error("is left out: the model reads no images");
    limit(size, MOST_IMAGE_BYTES, "choose a smaller image");
    return { url: await dataUrl(blob) };
  }
  if (type === "application/pdf" || /\.pdf$/i.test(name)) {
    limit(size, MOST_PDF_BYTES, "attach the pages that matter");
    return { text: await pdfText(await bytesOf(blob), MOST_TEXT_BYTES) };
  }
  limit(size, MOST_TEXT_BYTES, "attach the part that matters");
  return { text: decoded(await bytesOf(blob)) };
}

function limit(size, most, advice) {
  if (size > most) throw new Error(`is larger than ${most / MIB} MiB: ${advice}`);
}

async function bytesOf(blob) {
  try {
    return new Uint8Array(await blob.arrayBuffer());
  } catch {
    throw new Error("cannot be read; if it is a folder, attach its files");
  }
}

function decoded(bytes) {
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    // what is not UTF-8 counts as binary
  }
  if (!text.includes("\0")) return text;
  throw new Error("is neither UTF-8 text nor a PDF or an image that this page can read");
}

/** The tokens of a text, undefined if the model is not loaded. Raises Error if the files have more
 * than the context. */
async function tokensThatFit(text, count) {
  const { tokens, context } = await count(text);
  const others = attached.reduce((sum, each) => sum + (each.tokens ?? 0), 0);
  if (tokens === undefined || others + tokens <= context) return tokens;
  const [its, all] = [tokens, context].map((number) => number.toLocaleString());
  const beside = others ? ` beside the other files' ${others.toLocaleString()}` : "";
  throw new Error(`has ${its} tokens${beside}, and the model's context is ${all}: ` +
    "attach the part that matters");
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** How long a text is, for people. */
export function sizeOf(text) {
  return counted(text.split("\n").length, "line");
}

function show() {
  list.replaceChildren(...attached.map((entry) => {
    const { name, url } = entry;
    const onclick = () => {
      attached = attached.filter((other) => other !== entry);
      show();
    };
    const shown = url
      ? element("img", { src: url, alt: name })
      : element("span", { class: "file" }, `${name} · ${stateOf(entry)}`);
    return element("li", {},
      shown,
      element("button", { type: "button", "aria-label": `Remove ${name}`, onclick }, "×"));
  }));
}

function stateOf(entry) {
  if (isBeingRead(entry)) return "reading …";
  const { text, tokens } = entry;
  return tokens === undefined ? sizeOf(text) : counted(tokens, "token");
}
