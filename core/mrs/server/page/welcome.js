// The page before the first message: what the model is, and what to try.

import { element } from "./dom.js";
import { percent } from "./models.js";
import { neededBytes, size, speedOf } from "./plan.js";

const EXAMPLES = [
  "Explain what a KV cache is in three sentences.",
  "Write a Python function that counts the words of a text.",
  "Compare TCP and UDP in a table.",
];

/** Nodes about the model; `propose` gets a question that is chosen. */
export function welcome({ name, plan, chosen }, propose) {
  const examples = EXAMPLES.map((question) =>
    element("li", {}, element("button", { type: "button", onclick: () => propose(question) },
      question)));
  return [
    element("h2", {}, name),
    ...(plan ? facts(plan) : [element("p", {}, unloaded(chosen))]),
    element("ul", { class: "examples", "aria-label": "Questions to try" }, ...examples),
  ];
}

function unloaded(chosen) {
  if (chosen?.status === "failed") return `It could not be loaded: ${chosen.error}`;
  if (chosen?.status === "loading") return `It is being loaded: ${percent(chosen.progress)} is done.`;
  return "It is not loaded yet: your first message loads it.";
}

function facts({ model, planned, devices, vision, speed }) {
  const memory = devices.filter(({ layers }) => layers > 0).map((device) => {
    const { label, name } = device;
    return `${size(neededBytes(device))} on ${label}${name && name !== label ? `, ${name}` : ""}`;
  });
  const words = Number((planned.context_tokens * 0.75).toPrecision(2)).toLocaleString();
  return [
    element("dl", {},
      ...fact("Model", `${model.family}, ${count(model.parameters)} parameters, ` +
        `weights in ${model.weights_format}`),
      ...fact("Reads", vision ? "text and images" : "text"),
      ...fact("Context", `${planned.context_tokens.toLocaleString()} tokens: ` +
        `a chat of about ${words} words`),
      ...fact("Memory", memory.join("; ")),
      ...fact("Speed", `${speedOf(speed.decode_tokens_per_s)} tokens per second, as planned`)),
  ];
}

function fact(name, text) {
  return [element("dt", {}, name), element("dd", {}, text)];
}

function count(number) {
  const units = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"], [1, ""]];
  const [unit, name] = units.find(([each]) => number >= each) ?? units.at(-1);
  return `${Number((number / unit).toPrecision(3))} ${name}`.trim();
}
