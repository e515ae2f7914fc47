// What goes with the next message: images as data: URLs, and text files as text. They are chosen,
// dropped or pasted.

import { element } from "./dom.js";

const MOST_FILE_BYTES = 1 << 20;

const list = document.querySelector("#attachments");
const file = document.querySelector("#file");
let attached = []; // {name, url} of an image, {name, text} of a file
let seesImages = false;

/** Takes files from now on; `report` gets what is wrong with one. */
export function acceptFiles(report) {
  const add = (files) => addAll(files, report);
  document.querySelector("#attach").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    await add(file.files);
    file.value = "";
  });
  addEventListener("paste", (event) => add(event.clipboardData.files));
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
  const things = accepts ? "images or text files" : "text files";
  document.querySelector("#drop-hint").textContent = `or drop ${things} here`;
}

export function hasAttachments() {
  return attached.length > 0;
}

/** The images and files of the message that is sent now. */
export function takeAttachments() {
  const taken = attached;
  attached = [];
  show();
  return {
    images: taken.filter(({ url }) => url).map(({ url }) => url),
    files: taken.filter(({ url }) => !url),
  };
}

async function addAll(files, report) {
  for (const each of files) {
    try {
      attached.push(await read(each));
    } catch (problem) {
      report(problem.message);
    }
  }
  show();
}

async function read(blob) {
  const { name, size, type } = blob;
  if (type.startsWith("image/") && !type.includes("svg")) {
    if (!seesImages) throw new Error(`The model reads no images: ${name} is left out.`);
    return { name, url: await dataUrl(blob) };
  }
  if (type === "application/pdf") {
    throw new Error(`${name} is a PDF, which this page cannot read: attach its text.`);
  }
  if (size > MOST_FILE_BYTES) {
    throw new Error(`${name} is larger than 1 MiB: attach the part that matters.`);
  }
  return { name, text: await decoded(blob) };
}

async function decoded(blob) {
  const bytes = await blob.arrayBuffer();
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    // what is not UTF-8 counts as binary
  }
  if (!text.includes("\0")) return text;
  throw new Error(`${blob.name} is neither UTF-8 text nor an image that this page can read.`);
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
  const lines = text.split("\n").length;
  return `${lines.toLocaleString()} ${lines === 1 ? "line" : "lines"}`;
}

function show() {
  list.replaceChildren(...attached.map(({ name, url, text }, index) => {
    const onclick = () => {
      attached.splice(index, 1);
      show();
    };
    const shown = url
      ? element("img", { src: url, alt: name })
      : element("span", { class: "file" }, `${name} · ${sizeOf(text)}`);
    return element("li", {},
      shown,
      element("button", { type: "button", "aria-label": `Remove ${name}`, onclick }, "×"));
  }));
}
