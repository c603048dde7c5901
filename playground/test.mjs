// npm test: a visitor's clicks in a headless Chromium, on a site with the playground. SITE: its folder; CHROMIUM: the program.

import assert from "node:assert/strict";
import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { extname, resolve } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const SITE = resolve(process.env.SITE ?? "../build/site");
const KINDS = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript" };
const [ANSWERED, SHOWN] = [/error|warning|No problems/, { timeout: 60_000 }];

const requests = [];
const faults = [];
let server, browser, context, page;

before(async () => {
  server = createServer((request, response) => {
    requests.push(request.url);
    const path = SITE + new URL(request.url, "http://site").pathname;
    if (!existsSync(path)) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": KINDS[extname(path)] ?? "application/octet-stream" });
    createReadStream(path).pipe(response);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  context = await browser.newContext({ viewport: { width: 1400, height: 900 } });
  page = await visit(address());
});

after(async () => {
  await browser.close();
  server.close();
});

const address = () => `http://127.0.0.1:${server.address().port}/playground.html`;
const tab = (name) => page.getByRole("tab", { name, exact: true }).click();
const text = (of = page) => of.evaluate(() => window.playground.text);
const example = (name) => page.getByRole("combobox", { name: "Example" }).selectOption(name);
const editor = () => page.getByRole("textbox", { name: "Configuration file" });
const answer = () => page.locator("#answer[aria-busy=false]");
const inFrame = (title) => page.frameLocator(`iframe[title="${title}"]`);

/** Open the page in a tab of its own, and wait for the first answer. */
async function visit(url) {
  const opened = await context.newPage();
  opened.on("pageerror", (error) => faults.push(error));
  const start = performance.now();
  await opened.goto(url);
  await opened.getByRole("status").filter({ hasText: ANSWERED }).waitFor(SHOWN);
  console.log(`first answer after ${((performance.now() - start) / 1000).toFixed(1)} s`);
  return opened;
}

/** Type at the end of the file. */
async function append(words) {
  await editor().click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type(words);
  await page.keyboard.press("Escape"); // no completion
}

/** Wait until there are so many problems. */
async function problems(count) {
  await page.waitForFunction((wanted) => document.querySelectorAll(".problems > li").length === wanted, count, SHOWN);
}

test("a typo is a problem in its line, and one click corrects it", async () => {
  await problems(3);
  const before = await text();
  await append("log_intervl: 10");
  await problems(4);
  const line = before.split("\n").length;
  const item = page.locator(".problems > li").filter({ hasText: "log_intervl is not a parameter" });
  await item.getByRole("button", { name: `line ${line}` }).click();
  assert.equal(await page.evaluate(() => getSelection().toString()), "log_intervl");
  await page.locator(".cm-lint-marker-error").nth(3).waitFor();
  await item.getByRole("button", { name: "Fix: did you mean log_interval?" }).click();
  await problems(3);
  assert.equal(await text(), `${before}log_interval: 10`);
  assert.equal(await page.getByRole("status").textContent(), "3 errors");
});

test("the other problems are corrected: with a tooltip, by the keyboard, all at once", async () => {
  await page.locator(".cm-lintRange-error", { hasText: "recude_bucket_size" }).hover();
  await page.locator(".cm-tooltip").getByRole("button", { name: "Fix" }).click();
  await problems(2);
  await page.getByRole("button", { name: "Fix all that is certain (2)" }).press("Enter");
  await page.getByText("No problems", { exact: true }).waitFor(SHOWN);
  assert.match(await text(), /train_iters: 320000\n[^]*reduce_bucket_size[^]*lr_decay_style: cosine\n/);
  await editor().press("Control+z");
  await problems(2);
  await editor().press("Control+y");
  await page.getByText("No problems", { exact: true }).waitFor(SHOWN);
});

test("a plan for 8 H100", async () => {
  await page.getByRole("combobox", { name: "GPU", exact: true }).selectOption("H100-80GB");
  await page.getByLabel("Number of GPUs").fill("8");
  await tab("Plan");
  const plan = inFrame("Plan");
  await plan.getByRole("heading", { name: "8 x H100-80GB" }).waitFor(SHOWN);
  assert.ok((await plan.locator("section", { hasText: "Memory" }).locator("svg").count()) > 4);
  await page.getByLabel("Number of GPUs").fill("16");
  await page.getByLabel("Number of GPUs").press("Enter");
  await plan.getByRole("heading", { name: "16 x H100-80GB" }).waitFor(SHOWN);
  await page.getByLabel("Number of GPUs").fill("8");
});

test("a search for the best layouts, while problems are found", async () => {
  await tab("Search");
  await append("\nlog_intervl: 10");
  await page.getByText("1 error", { exact: true }).waitFor(SHOWN);
  await editor().press("Control+z");
  await page.getByText("No problems", { exact: true }).waitFor(SHOWN);
  const found = inFrame("Search");
  await found.getByRole("heading", { name: "Layouts for 8 x H100-80GB" }).waitFor(SHOWN);
  await found.getByRole("img", { name: "step time and memory" }).waitFor();
});

test("the key under the cursor is explained, and a problem by its id", async () => {
  await tab("Explain");
  await page.locator(".cm-line", { hasText: "stage: 1" }).click();
  await answer().getByText("zero_optimization.stage").waitFor(SHOWN);
  await page.getByLabel("Key or problem").fill("heads-divide-hidden-size");
  await answer().getByText("[heads-divide-hidden-size]").or(answer().getByText("Every attention head")).first().waitFor(SHOWN);
});

test("a key is completed", async () => {
  await append("\ntrain_it");
  await page.keyboard.press("Control+Space");
  await page.locator(".cm-tooltip-autocomplete").waitFor(SHOWN);
  await page.keyboard.press("Escape");
  for (let letter = 0; letter < 9; letter++) await page.keyboard.press("Backspace");
});

test("a Megatron-LM script is migrated, and the result is used", async () => {
  await example("Megatron-LM script");
  await tab("Migrate");
  const result = page.getByRole("textbox", { name: "The file after the migration" });
  await result.getByText("num_layers: 24").waitFor(SHOWN);
  assert.match(await text(), /^#!\/bin\/bash/);
  await page.getByRole("button", { name: "Use this file" }).click();
  await page.getByText("No problems", { exact: true }).waitFor(SHOWN);
  assert.match(await text(), /^num_layers: 24$/m);
});

test("an old GPT-NeoX file is migrated, with its changes marked", async () => {
  await tab("Migrate");
  await example("GPT-NeoX file of 2021");
  await page.locator(".result .cm-inlineChangedLine", { hasText: "offload_optimizer" }).waitFor(SHOWN);
});

test("two files are compared", async () => {
  await example("Quick start");
  await tab("Diff");
  await page.locator(".file .cm-line", { hasText: "num_layers" }).click();
  await page.keyboard.press("End");
  await page.keyboard.type("8");
  await inFrame("Differences").getByText("num_layers").first().waitFor(SHOWN);
});

test("a mistake is answered with the sentence of the command line", async () => {
  await tab("Plan");
  await append("\nhidden_size: 1");
  await answer().locator("pre", { hasText: /^my\.yml:\d+:1: error: hidden_size is set twice/ }).waitFor(SHOWN);
  assert.doesNotMatch(await answer().textContent(), /Traceback/);
  await editor().press("Control+z");
});

test("a link restores the file, and no server sees it", async () => {
  const shared = await text();
  await page.getByRole("button", { name: "Copy link" }).click();
  await page.getByText("It contains the file").waitFor();
  const linked = await visit(page.url());
  assert.equal(await text(linked), shared);
  assert.equal(await linked.getByRole("tab", { selected: true }).textContent(), "Plan");
  await linked.close();
  const own = requests.filter((path) => !/^\/(playground|_static|favicon)/.test(path) || path.includes("file="));
  assert.deepEqual(own, []);
});

test("every control is reached by the keyboard", async () => {
  await page.getByRole("combobox", { name: "Example" }).focus();
  const reached = [];
  for (let step = 0; step < 6; step++) {
    reached.push(await page.evaluate(() => document.activeElement.name || document.activeElement.getAttribute("role")));
    await page.keyboard.press("Tab");
  }
  assert.deepEqual(reached, ["example", "device", "gpus", "share", "textbox", "tab"]);
  await page.getByRole("tab", { selected: true }).focus();
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.getByRole("tab", { selected: true }).textContent(), "Problems");
});

for (const colorScheme of ["light", "dark"]) {
  test(`nothing is wider than a phone, ${colorScheme}`, async () => {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width: 420, height: 900 });
    for (const name of ["Problems", "Plan", "Explain", "Migrate", "Diff"]) {
      await tab(name);
      await answer().waitFor(SHOWN);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 420, name);
    }
    await page.setViewportSize({ width: 1400, height: 900 });
  });
}

test("the page works without its server", async () => {
  server.closeAllConnections();
  await new Promise((closed) => server.close(closed));
  const kept = await text();
  await tab("Problems");
  await page.reload();
  await page.getByRole("status").filter({ hasText: ANSWERED }).waitFor(SHOWN);
  assert.equal(await text(), kept);
  await append("\nlog_intervl: 10");
  await page.getByText("log_intervl is not a parameter").first().waitFor(SHOWN);
});

test("no script failed", () => assert.deepEqual(faults, []));
