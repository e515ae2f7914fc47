// The page's libraries, which `vendor/README.md` describes.

import "./vendor/dompurify-3.5.0/purify.min.js";
import "./vendor/katex-0.19.1/katex.min.js";

export { default as MarkdownIt } from "./vendor/markdown-it-15.0.3/markdown-it.esm.min.mjs";
export { default as highlighter } from "./vendor/highlight-11.12.0/highlight.min.js";
export const { DOMPurify, katex } = globalThis;

/** The library that reads PDF files, the largest one: fetched with the first file. */
export const fetchPdfLibrary = () => import("./vendor/pdfjs-6.5.438/pdf.min.mjs");
export const PDF_WORKER =
  new URL("./vendor/pdfjs-6.5.438/pdf.worker.min.mjs", import.meta.url).href;
