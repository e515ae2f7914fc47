// The text of PDF files. A worker reads them, which ends when the file is read or takes too long.

import { PDF_WORKER, fetchPdfLibrary } from "./libraries.js";

const MOST_SECONDS = 30;

// The page's policy lets no other script become a worker.
const policy = globalThis.trustedTypes?.createPolicy("pdf-worker", {
  createScriptURL: () => PDF_WORKER,
});

/** What is wrong with a file; `message` continues its name. */
class NotReadable extends Error {}

/** The text of a PDF, with a blank line between pages. Raises NotReadable, also for more than
 * `most` characters. */
export async function pdfText(bytes, most) {
  const library = await fetchPdfLibrary().catch(() => {
    throw new NotReadable("cannot be read, because a part of this page is missing: reload it");
  });
  const url = policy ? policy.createScriptURL("") : PDF_WORKER;
  const port = new Worker(url, { type: "module" });
  const late = new Promise((_, reject) => {
    const problem = new NotReadable(`takes longer than ${MOST_SECONDS} seconds to read`);
    setTimeout(reject, MOST_SECONDS * 1000, problem);
  });
  try {
    return await Promise.race([late, textOf(library, port, bytes, most)]);
  } catch (problem) {
    throw problem instanceof NotReadable ? problem : new NotReadable("is a damaged PDF");
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
    throw problem.name === "PasswordException" ? new NotReadable("needs a password") : problem;
  });
  const pages = [];
  let left = most;
  for (let number = 1; number <= pdf.numPages; number += 1) {
    const text = await pageText(await pdf.getPage(number), left);
    left -= text.length;
    if (left < 0) {
      const limit = `${most / 2 ** 20} MiB`;
      throw new NotReadable(`has more than ${limit} of text: attach the pages that matter`);
    }
    pages.push(text.trim());
  }
  if (unread.size) {
    throw new NotReadable(`has fonts that this page cannot read (${[...unread].join(", ")})`);
  }
  const text = pages.filter(Boolean).join("\n\n");
  if (!text) throw new NotReadable("has no text: it may be a scan");
  return text;
}

/** The text of a page; no more than a part beyond `most` characters is read. */
async function pageText(page, most) {
  const reader = page.streamTextContent().getReader();
  let text = "";
  while (text.length <= most) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value.items.map(({ str, hasEOL }) => str + (hasEOL ? "\n" : "")).join("");
  }
  page.cleanup();
  return text;
}
