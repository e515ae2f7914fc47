// The models of the server: which one answers, how far it is loaded, its plan.

import { getJson } from "./client.js";
import { element } from "./dom.js";

const CHOSEN = "mrs-model";
const title = document.querySelector("#model");
const picker = document.querySelector("#models");

export class Models {
  constructor() {
    this.all = [];
    this.name = "the model";
    this.plan = null; // of the chosen model, while it is loaded
  }

  /** Asks the server for its models, and for the plan of the chosen one if it is loaded. */
  async refresh() {
    this.all = (await getJson("v1/models")).data;
    const isThere = (name) => this.all.some(({ id }) => id === name);
    const chosen = [this.name, localStorage.getItem(CHOSEN)].find(isThere);
    this.#show(chosen ?? this.all[0].id);
    if (this.all.length > 1 && this.chosen.status !== "loaded") this.plan = null;
    else if (this.planOf !== this.name || !this.plan) await this.#fetchPlan();
  }

  get chosen() {
    return this.all.find(({ id }) => id === this.name);
  }

  choose(name) {
    localStorage.setItem(CHOSEN, name);
    this.plan = null;
    this.#show(name);
  }

  async #fetchPlan() {
    const query = this.all.length > 1 ? `?model=${encodeURIComponent(this.name)}` : "";
    this.plan = await getJson(`plan${query}`);
    this.planOf = this.name;
  }

  #show(name) {
    this.name = document.title = title.textContent = name;
    const isChoice = this.all.length > 1;
    title.classList.toggle("unseen", isChoice);
    picker.hidden = !isChoice;
    if (document.activeElement === picker && picker.length === this.all.length) return;
    picker.replaceChildren(...this.all.map((model) =>
      element("option", { value: model.id }, `${model.id}${statusOf(model)}`)));
    picker.value = name;
  }
}

function statusOf({ status, progress }) {
  if (status === "loaded") return "";
  return status === "loading" ? ` · loading, ${percent(progress)}` : ` · ${NAMES[status] ?? status}`;
}

const NAMES = { unloaded: "not loaded", failed: "could not be loaded" };

export function percent(share) {
  return `${Math.floor(share * 100)} %`;
}
