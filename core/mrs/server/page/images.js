// The images of the next message: chosen, dropped or pasted, as data: URLs.

import { element } from "./dom.js";

const list = document.querySelector("#images");
const file = document.querySelector("#file");
const attach = document.querySelector("#attach");
let urls = [];

/** Takes images from now on; `report` gets what is wrong with a file. */
export function acceptImages(report) {
  attach.hidden = false;
  document.querySelector("#drop-hint").hidden = false;
  attach.addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    await add(file.files, report);
    file.value = "";
  });
  addEventListener("paste", (event) => add(event.clipboardData.files, report));
  addEventListener("dragenter", () => document.body.classList.add("dropping"));
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  addEventListener("drop", (event) => add(event.dataTransfer.files, report));
}

/** A file that is dropped never replaces the page. */
export function keepDrops() {
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length) event.preventDefault();
    document.body.classList.remove("dropping");
  });
}

export function hasImages() {
  return urls.length > 0;
}

export function takeImages() {
  const taken = urls;
  urls = [];
  show();
  return taken;
}

async function add(files, report) {
  for (const each of files) {
    if (each.type.startsWith("image/")) urls.push(await dataUrl(each));
    else report(`${each.name} is no image.`);
  }
  show();
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

function show() {
  list.replaceChildren(...urls.map((url, index) => {
    const label = `Remove image ${index + 1}`;
    const onclick = () => {
      urls.splice(index, 1);
      show();
    };
    return element("li", {},
      element("img", { src: url, alt: `Image ${index + 1}` }),
      element("button", { type: "button", "aria-label": label, onclick }, "×"));
  }));
}
