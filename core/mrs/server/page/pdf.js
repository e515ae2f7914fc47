// The text of PDF files. A worker reads them, which ends when the file is read or takes too long.

import { PDF_WORKER, fetchPdfLibrary } from "./libraries.js";

const MOST_SECONDS = 60;

// The page's policy lets no other script become a worker.
const policy = globalThis.trustedTypes?.createPolicy("pdf-worker", {
  createScriptURL: () => PDF_WORKER,
});

/** The text of a PDF, with a blank line between pages. Raises Error, whose message continues the
 * file's name, also for more than `most` characters. */
export async function pdfText(bytes, most) {
  const library = await fetchPdfLibrary().catch(() => {
    throw new Error("cannot be read, because a part of this page is missing: reload it");
  });
  const url = policy ? policy.createScriptURL("") : PDF_WORKER;
  const port = new Worker(url, { type: "module" });
  const late = new Promise((_, reject) => {
    const problem = new Error(`takes longer than ${MOST_SECONDS} seconds to read`);
    setTimeout(reject, MOST_SECONDS * 1000, problem);
  });
  try {
    return await Promise.race([late, textOf(library, port, bytes, most)]);
  } finally {
    port.terminate();
  }
}

async function textOf(library, port, data, most) {
  const unread = new Set(); // character maps that fonts need and the page does not have
  class NoData {
    async fetch({ kind, filename }) {
      if (kind === "cMapUrl") unread.add(filename);
      throw new Error(`there is no ${filename}`);
    }
  }
  const worker = new library.PDFWorker({ port, verbosity: library.VerbosityLevel.ERRORS });
  const options = {
    data,
    worker,
    BinaryDataFactory: NoData,
    useWorkerFetch: false,
    useSystemFonts: false,
    disableFontFace: true,
    disableWorkerRendering: true,
    verbosity: library.VerbosityLevel.ERRORS,
  };
  const pdf = await library.getDocument(options).promise.catch((problem) => {
    const needsPassword = problem.name === "PasswordException";
    throw new Error(needsPassword ? "needs a password" : "is a damaged PDF");
  });
  const pages = [];
  let length = 0;
  for (let number = 1; number <= pdf.numPages; number += 1) {
    const page = await pdf.getPage(number);
    const { items } = await page.getTextContent();
    const text = items.map(({ str, hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim();
    length += text.length;
    if (length > most) throw new Error(`has more than ${most / 2 ** 20} MiB of text: attach the pages that matter`);
    pages.push(text);
    page.cleanup();
  }
  if (unread.size) throw new Error(`has fonts that this page cannot read (${[...unread].join(", ")})`);
  const text = pages.filter(Boolean).join("\n\n");
  if (!text) throw new Error("has no text: it may be a scan");
  return text;
}
