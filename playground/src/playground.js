// The page "Playground" of the documentation: an editor, and beside it what each command says of the file.

import { goTo, makeEditor, position, replaceText, showProblems, showText } from "./editor.js";
import { fromFragment, toFragment } from "./link.js";
import { Python, newest, rested } from "./python.js";
import "./playground.css";
import quickstart from "../../configs/quickstart.yml";
import neox20b from "../../configs/models/gpt-neox-20b.yml";
import deepspeed from "../examples/ds_config.json";
import mistakes from "../examples/mistakes.yml";
import older from "../examples/older.yml";
import megatron from "../examples/pretrain.sh";

const EXAMPLES = {
  "Three mistakes": mistakes,
  "Quick start": quickstart,
  "GPT-NeoX-20B": neox20b,
  "GPT-NeoX file of 2021": older,
  "DeepSpeed JSON": deepspeed,
  "Megatron-LM script": megatron,
};
const TABS = { check: "Problems", plan: "Plan", search: "Search", explain: "Explain", migrate: "Migrate", diff: "Diff" };
const TEMPLATE = `
  <div class="bar">
    <label>Example <select name="example"></select></label>
    <label>GPU <select name="device"></select></label>
    <label>Number of GPUs <input name="gpus" type="number" min="1" max="65536" required></label>
    <button type="button" name="share">Copy link to this file</button>
  </div>
  <p class="status" role="status"></p>
  <div class="panes">
    <section class="file" aria-label="Your file"></section>
    <section class="answer" aria-label="Answer">
      <div role="tablist" aria-label="Commands"></div>
      <div role="tabpanel" id="answer" tabindex="0"></div>
    </section>
  </div>`;

/** Make an element. Attributes that begin with "on" are listeners. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** The name of a file with this text, from which `migrate` recognises its kind. */
function nameOf(text) {
  if (/^\s*\{/.test(text)) return "my.json";
  return /^#!|^\s*(torchrun|deepspeed|python3?)\s|^\s*--num-layers\s/m.test(text) ? "my.sh" : "my.yml";
}

class Playground {
  constructor(place, state) {
    place.innerHTML = TEMPLATE;
    this.place = place;
    [this.example, this.device, this.gpus] = ["example", "device", "gpus"].map((name) => place.querySelector(`[name=${name}]`));
    [this.status, this.panel] = [place.querySelector(".status"), place.querySelector("[role=tabpanel]")];
    this.python = new Python();
    this.other = state.other ?? state.text;
    this.problems = null;
    this.gpus.value = state.gpus;
    this.editor = makeEditor({
      parent: place.querySelector(".file"),
      label: "Configuration file, YAML",
      text: state.text,
      changed: rested(150, () => this.changed()),
      moved: rested(150, () => this.tab === "explain" && this.refresh()),
      complete: (...values) => this.python.call("complete", ...values),
    });
    this.example.append(new Option("", ""), ...Object.keys(EXAMPLES).map((name) => new Option(name, name)));
    this.example.value = Object.keys(EXAMPLES).find((name) => EXAMPLES[name] === state.text) ?? "";
    this.example.addEventListener("change", () => this.load(EXAMPLES[this.example.value]));
    for (const field of [this.device, this.gpus]) field.addEventListener("change", () => this.changed());
    place.querySelector("[name=share]").addEventListener("click", () => this.share());
    this.makeTabs();
    this.check = newest(() => this.findProblems());
    this.refresh = newest(() => this.answer());
    this.say("Loading Python: 8 MB, once …");
    this.start(state);
  }

  get text() {
    return this.editor.state.doc.toString();
  }

  say(sentence) {
    if (this.status.textContent !== sentence) this.status.textContent = sentence;
  }

  async start(state) {
    try {
      const { names, assumed } = await this.python.call("devices");
      this.device.append(...names.map((name) => new Option(name, name)));
      this.device.value = names.includes(state.device) ? state.device : assumed;
      this.select(state.tab in TABS ? state.tab : "check");
      await this.changed();
    } catch (error) {
      this.say(`Python does not start in this browser: ${error.message}`);
    }
  }

  load(text) {
    if (text === undefined) return;
    this.other = text;
    replaceText(this.editor, text);
  }

  async changed() {
    if (!this.gpus.reportValidity()) return;
    sessionStorage.setItem("playground", JSON.stringify(this.state()));
    await this.check();
    if (this.tab !== "check") await this.refresh();
  }

  state() {
    return { text: this.text, other: this.other, device: this.device.value, gpus: Number(this.gpus.value), tab: this.tab };
  }

  async share() {
    history.replaceState(null, "", await toFragment(this.state()));
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    this.say("The link is copied, and in the address bar. It contains the file.");
  }

  // -- tabs -----------------------------------------------------------------------------------------------------------

  makeTabs() {
    const list = this.place.querySelector("[role=tablist]");
    this.tabs = Object.entries(TABS).map(([name, title]) =>
      element("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "answer", onclick: () => this.select(name) }, title),
    );
    list.append(...this.tabs);
    list.addEventListener("keydown", ({ key }) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!move) return;
      const next = this.tabs.at((this.tabs.indexOf(document.activeElement) + move) % this.tabs.length);
      next.focus();
      next.click();
    });
  }

  select(name) {
    this.tab = name;
    for (const tab of this.tabs) {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${name}`);
    this.panel.dataset.tab = name;
    this.panel.replaceChildren();
    this.parts = {};
    this.refresh();
  }

  /** Fill the panel of the chosen tab. */
  async answer() {
    const { tab, panel } = this;
    panel.setAttribute("aria-busy", "true");
    try {
      await this[tab === "check" ? "showList" : tab]();
    } catch (error) {
      if (tab === this.tab) panel.replaceChildren(element("pre", {}, `This is a fault of deepy, please report it: ${error.message}`));
    }
    panel.setAttribute("aria-busy", "false");
  }

  /** Run a command; the file is in `name`. Return null if another tab has been chosen meanwhile. */
  async run(python, words, writes = "page.html", files = {}) {
    const { tab, text } = this;
    const answer = await python.call("run", { [nameOf(text)]: text, ...files }, words, writes);
    return tab === this.tab ? answer : null;
  }

  // -- problems -------------------------------------------------------------------------------------------------------

  async findProblems() {
    const { text } = this;
    this.problems = await this.python.call("check", nameOf(text), text, Number(this.gpus.value));
    if (text !== this.text) return; // it is checked again
    this.problems.text = text;
    showProblems(this.editor, this.problems.problems, (problem) => this.fix(problem));
    const count = (severity) => this.problems.problems.filter((problem) => problem.severity === severity).length;
    const number = (count, word) => (count ? [`${count} ${word}${count > 1 ? "s" : ""}`] : []);
    this.say([...number(count("error"), "error"), ...number(count("warning"), "warning")].join(", ") || "No problems");
    if (this.tab === "check") this.showList();
  }

  showList() {
    if (!this.problems) return;
    const { problems, summary } = this.problems;
    const items = problems.map((problem) => this.item(problem));
    const certain = problems.filter(({ fixed, certain }) => fixed !== null && certain).length;
    const fixAll = element("button", { type: "button", onclick: () => this.fixAll() }, `Fix all that is certain (${certain})`);
    this.panel.replaceChildren(
      ...(items.length ? [element("ol", { class: "problems" }, ...items)] : [element("p", { class: "none" }, "No problems.")]),
      ...(certain > 1 ? [fixAll] : []),
      ...(summary.length ? [element("pre", { "aria-label": "Summary of the run" }, summary.join("\n"))] : []),
    );
  }

  item(problem) {
    const line = problem.line
      ? element("button", { type: "button", class: "line", onclick: () => goTo(this.editor, problem) }, `line ${problem.line}`)
      : element("span", { class: "line" }, "whole file");
    const id = element("button", { type: "button", class: "id", title: "Explain this check", onclick: () => this.explainName(problem.id) }, problem.id);
    const fix = element("button", { type: "button", class: "fix", onclick: () => this.fix(problem) }, "Fix");
    fix.setAttribute("aria-label", `Fix: ${problem.hint || problem.what}`);
    return element(
      "li",
      { class: problem.severity },
      element("div", { class: "head" }, element("b", {}, problem.severity), line, id, ...(problem.fixed === null ? [] : [fix])),
      element("p", {}, problem.what),
      ...(problem.hint ? [element("p", { class: "hint" }, problem.hint)] : []),
    );
  }

  fix(problem) {
    if (this.text !== this.problems.text) return; // the problem is of an older text
    replaceText(this.editor, problem.fixed);
  }

  async fixAll() {
    const { text } = this;
    const name = nameOf(text);
    const { written } = await this.python.call("run", { [name]: text }, ["check", name, "--gpus", this.gpus.value, "--fix"], name);
    if (text === this.text) replaceText(this.editor, written);
  }

  // -- the other commands ---------------------------------------------------------------------------------------------

  async plan(python = this.python, ...more) {
    const words = ["plan", nameOf(this.text), "--gpus", this.gpus.value, "--device", this.device.value, "--html", "page.html", ...more];
    const answer = await this.run(python, words);
    if (answer) this.panel.replaceChildren(answer.written ? this.page(answer.written, TABS[this.tab]) : element("pre", {}, answer.printed));
  }

  async search() {
    if (!this.panel.firstChild) this.panel.append(element("p", {}, "Planning every layout takes some seconds …"));
    this.searching ??= new Python(); // of its own, so that problems are found meanwhile
    await this.plan(this.searching, "--search");
  }

  /** A page that a command has written, as high as its content. */
  page(html, title) {
    const frame = element("iframe", { title, sandbox: "allow-same-origin", srcdoc: html });
    frame.addEventListener("load", () => {
      const root = frame.contentDocument.documentElement;
      new ResizeObserver(() => (frame.style.height = `${root.getBoundingClientRect().height}px`)).observe(root);
    });
    return frame;
  }

  async explain() {
    if (!this.parts.name) {
      this.parts.name = element("input", { id: "explain", spellcheck: "false", autocomplete: "off", oninput: () => this.explainName() });
      this.parts.answer = element("pre", { "aria-live": "polite" });
      const label = element("label", { for: "explain" }, "Key or problem ");
      label.append(this.parts.name);
      this.panel.replaceChildren(label, this.parts.answer);
      if (this.parts.wanted) return;
    }
    const said = await this.python.call("explain", nameOf(this.text), this.text, ...position(this.editor), Number(this.gpus.value));
    if (this.tab !== "explain") return;
    this.parts.name.value = said ? said.match(/^\S+/)[0] : "";
    this.parts.answer.textContent = said || "Put the cursor on a key, or write the name of a key or the id of a problem.";
  }

  /** Explain a name: the given one, or that in the field. */
  async explainName(name = this.parts.name.value.trim()) {
    if (this.tab !== "explain") {
      this.select("explain");
      this.parts.wanted = name;
      await this.explain();
      this.parts.name.value = name;
    }
    if (!name) return;
    const answer = await this.run(this.python, ["explain", name]);
    if (answer) this.parts.answer.textContent = answer.printed;
  }

  async migrate() {
    const { text } = this;
    const name = nameOf(text);
    const answer = await this.run(this.python, ["migrate", name, "-o", "migrated.yml"], "migrated.yml");
    if (!answer) return;
    const said = element("pre", { "aria-label": "Changes and problems" }, answer.printed);
    if (!answer.written) return this.panel.replaceChildren(said);
    const use = element("button", { type: "button", onclick: () => this.load(answer.written) }, "Use this file");
    const result = element("div", { class: "result" });
    showText({ parent: result, label: "The file after the migration", text: answer.written, older: name === "my.yml" ? text : undefined });
    this.panel.replaceChildren(use, result, said);
  }

  async diff() {
    if (!this.parts.other) {
      this.parts.other = element("div", { class: "result" });
      this.parts.answer = element("div", {});
      this.panel.replaceChildren(this.parts.other, this.parts.answer);
      const changed = rested(300, () => {
        this.other = editor.state.doc.toString();
        this.changed();
      });
      const editor = makeEditor({ parent: this.parts.other, label: "The other file", text: this.other, changed });
    }
    const [name, other] = [nameOf(this.text), `other-${nameOf(this.other)}`];
    const words = ["diff", other, name, "--gpus", this.gpus.value, "--html", "page.html"];
    const answer = await this.run(this.python, words, "page.html", { [other]: this.other });
    if (answer) this.parts.answer.replaceChildren(answer.written ? this.page(answer.written, "Differences") : element("pre", {}, answer.printed));
  }
}

/** Let the service worker keep what is loaded, so that the next visit needs no network. */
async function workOffline() {
  if (!navigator.serviceWorker) return;
  await navigator.serviceWorker.register(new URL("../playground-offline.js", import.meta.url), { scope: "./playground" });
  if (!navigator.serviceWorker.controller) {
    await new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true }));
  }
  // What was loaded before.
  for (const { name } of [{ name: location.pathname }, ...performance.getEntriesByType("resource")]) fetch(name).catch(() => {});
}

async function begin() {
  const place = document.getElementById("try");
  const example = { text: mistakes, gpus: 8, device: "H100-80GB", tab: "check" };
  const kept = JSON.parse(sessionStorage.getItem("playground") ?? "null");
  const linked = await fromFragment(location.hash);
  await workOffline().catch((error) => console.warn("The playground will not work offline:", error));
  window.playground = new Playground(place, { ...example, ...(linked ?? kept) });
}

begin();
