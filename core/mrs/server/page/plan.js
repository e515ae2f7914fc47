// Draws the plan: the memory of each device, and the device of each layer.

import { element, svg } from "./dom.js";

const WIDTH = 600;
const PARTS = ["weights", "KV cache", "activations", "runtime", "allocator", "reserve"];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function planNodes(plan) {
  const devices = plan.devices.filter((each) => each.layers > 0);
  const layers = plan.layers.map((each) => devices.findIndex((d) => d.label === each.device));
  const { batch, context_tokens } = plan.planned;
  const sequences = batch > 1 ? `${batch} sequences of ` : "";
  return [
    element("p", {}, plan.summary),
    element("p", {}, `Planned for ${sequences}${context_tokens.toLocaleString()} tokens, ` +
      `at ${speedOf(plan.speed.decode_tokens_per_s)} tokens per second.`),
    ...devices.map(deviceNode),
    layersNode(layers, devices),
  ];
}

/** A planned speed for people: "57–140". */
export function speedOf({ low, high }) {
  const rounded = (rate) => Number(rate.toPrecision(2)).toLocaleString();
  return `${rounded(low)}–${rounded(high)}`;
}

export function size(bytes) {
  const unit = bytes < 1024 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), UNITS.length - 1);
  return `${Number((bytes / 1024 ** unit).toPrecision(3))} ${UNITS[unit]}`;
}

function partsOf(device) {
  return PARTS.map((name, kind) => {
    const bytes = device.bytes[name.toLowerCase().replace(" ", "_")];
    return { name, kind, bytes: bytes.expected ?? bytes };
  }).filter((part) => part.bytes > 0);
}

/** The bytes that the model takes of a device's memory. */
export function neededBytes(device) {
  return partsOf(device).reduce((sum, part) => sum + part.bytes, 0);
}

function deviceNode(device) {
  const parts = partsOf(device);
  const needed = neededBytes(device);
  const all = needed + Math.max(device.bytes.free, 0);
  const text = `${device.label} needs ${size(needed)} of ${size(all)}`;
  const legend = parts.map((part) =>
    element("li", { class: `part-${part.kind}` }, `${part.name} ${size(part.bytes)}`));
  return element("section", {},
    element("h3", {}, text),
    bars(parts, needed, all, text),
    element("ul", { class: "legend" }, ...legend));
}

/** The parts of what is needed, above the share of the device's memory that they need. */
function bars(parts, needed, all, text) {
  let x = 0;
  const rects = parts.map((part) => {
    const width = (part.bytes / needed) * WIDTH;
    const rect = svg("rect", { x, y: 0, width, height: 36, class: `part-${part.kind}` },
      svg("title", {}, `${part.name} ${size(part.bytes)}`));
    x += width;
    return rect;
  });
  const share = Math.max((needed / all) * WIDTH, 2);
  const ends = [`0,56 0,40 ${WIDTH},40 ${share},56`];
  return svg("svg", { viewBox: `0 0 ${WIDTH} 70`, role: "img", "aria-label": text },
    ...rects,
    svg("polygon", { points: ends.join(" "), class: "zoom" }),
    svg("rect", { x: 0, y: 56, width: WIDTH, height: 12, class: "free" }),
    svg("rect", { x: 0, y: 56, width: share, height: 12, class: "needed" }));
}

function layersNode(layers, devices) {
  const step = WIDTH / layers.length;
  const gap = Math.min(2, step / 4);
  const rects = layers.map((device, index) =>
    svg("rect", { x: index * step, y: 0, width: step - gap, height: 24, class: `on-${device % 6}` },
      svg("title", {}, `layer ${index}: ${devices[device]?.label}`)));
  const text = "Layers: " + devices.map((each) => `${each.layers} on ${each.label}`).join(", ");
  return element("section", {},
    element("h3", {}, text),
    svg("svg", { viewBox: `0 0 ${WIDTH} 24`, role: "img", "aria-label": text }, ...rects),
    element("ul", { class: "legend" },
      ...devices.map((each, index) => element("li", { class: `on-${index % 6}` }, each.label))));
}
