// The fields of the drawer, which the browser remembers, as fields of a request.

const STORED = "mrs-settings";
const TEXTS = ["system", "stop", "enable_thinking"];

const form = document.querySelector("#settings form");

function values() {
  return Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
}

export function restoreSettings() {
  const stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
  for (const [name, value] of Object.entries(stored)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.addEventListener("input", () => {
    localStorage.setItem(STORED, JSON.stringify(values()));
  });
}

export function systemPrompt() {
  return values().system ?? "";
}

/** What the request has apart from its messages. */
export function requestFields() {
  const given = values();
  const fields = {};
  for (const [name, value] of Object.entries(given)) {
    if (!TEXTS.includes(name)) fields[name] = Number(value);
  }
  if (given.stop) fields.stop = given.stop.split("\n").filter(Boolean);
  if (given.enable_thinking) fields.enable_thinking = given.enable_thinking === "true";
  return fields;
}
