// The filter above the parameter tables. Its state is kept in the URL fragment, so that a view can be linked to:
//   parameters.html#q=bucket&origin=DSC&effect=engine&dialect=2022-12-14
// A fragment without "=" is the anchor of a parameter. Without JavaScript the page shows all rows.
(() => {
  "use strict";
  const page = document.querySelector("#parameters");
  const cells = ["origin", "name", "default", "description", "type", "effect", "destination", "years"];
  const days = { "neox-2021": "2021-02-28", "neox-2026": "2026-05-20" };
  const origins = {
    DSL: "flag of DeepSpeed's launcher", DSC: "key of DeepSpeed's JSON configuration", Meg: "argument of Megatron-LM",
    NeoX: "added by GPT-NeoX", deepy: "added by deepy",
  };
  const normal = (text) => text.toLowerCase().replaceAll("-", "_");

  /** A table row with the fields that the filter reads. */
  function read(element) {
    const cell = Object.fromEntries(cells.map((name, index) => [name, element.cells[index]]));
    const codes = cell.origin.textContent.split(", ");
    cell.origin.title = codes.map((code) => `${code}: ${origins[code]}`).join("; ");
    return {
      element,
      home: element.parentElement,
      name: normal(cell.name.textContent.trim()),
      origins: codes,
      effect: cell.effect.textContent.split(":")[0],
      kind: cell.effect.textContent ? "parameter" : cell.destination.textContent ? "section" : "spelling",
      words: normal(element.textContent),
      ...lifetime(cell.years.textContent),
      defaults: splitDefault(cell.default),
    };
  }

  /** Parse "since A until B", "always" or an empty cell into two days. */
  function lifetime(text) {
    const day = (word) => text.match(`${word} (\\S+)`)?.[1];
    return text ? { since: day("since") ?? "0", until: day("until") ?? "9" } : { since: "9", until: "0" };
  }

  /** Split "0.1, 0.0 from 2023-12-26, Megatron-LM's own 0.1" into its parts, each with the day from which it holds. */
  function splitDefault(cell) {
    const parts = [document.createElement("span")];
    const line = cell.firstElementChild ?? cell;
    for (const node of [...line.childNodes]) {
      const pieces = node.nodeType === Node.TEXT_NODE ? node.data.split(/, (?=\S|$)/) : [node];
      pieces.forEach((piece, index) => {
        if (index) parts.push(document.createElement("span"));
        parts.at(-1).append(piece);
      });
    }
    const since = (text) => text.match(/ from (\S+)$/)?.[1];
    const filled = parts.filter((span) => span.textContent); // an empty cell stays empty, and is hidden by the CSS
    return { line, parts: filled.map((span, index) => ({ span, since: since(span.textContent) ?? (index ? null : "0") })) };
  }

  /** Show the default on a day (without a day, all defaults) and the receiver's own default. */
  function showDefault({ line, parts }, day) {
    const current = parts.findLast((part) => part.since && part.since <= day);
    const shown = parts.filter((part) => !day || part === current || !part.since);
    line.replaceChildren(...shown.flatMap(({ span }, index) => (index ? [", ", span] : [span])));
  }

  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  /**
   * The rank of a row for a query, lower first; Infinity: no match. Each word of the query is the beginning of one of the
   * row's words, or part of its name. Ranks: the name itself, its last part, its beginning, a part of it, the description.
   */
  function ranking(query) {
    const words = normal(query).split(/\s+/).filter(Boolean);
    const patterns = words.map((word) => new RegExp((/^\w/.test(word) ? "(?<![a-z0-9])" : "") + escaped(word)));
    const whole = words.join("_");
    return ({ name, words: text }) => {
      if (!words.every((word, index) => name.includes(word) || patterns[index].test(text))) return Infinity;
      if (name === whole) return 0;
      if (name.endsWith(`.${whole}`)) return 1;
      if (name.startsWith(whole)) return 2;
      if (name.includes(whole)) return 3;
      return words.every((word) => name.includes(word)) ? 4 : 5;
    };
  }

  /** The form above the tables. */
  function filterForm(rows) {
    const unique = (values) => [...new Set(values)].filter(Boolean).sort();
    const options = (values, meaning = {}) =>
      values.map((value) => `<option value="${value}">${[value, meaning[value]].filter(Boolean).join(": ")}</option>`).join("");
    const form = document.createElement("form");
    form.id = "filter";
    form.setAttribute("role", "search");
    form.innerHTML = `
      <label class="words">Words <input name="q" type="search" autocomplete="off" spellcheck="false"
        placeholder="bucket size, learning rate, zero_opt…"></label>
      <label>Origin <select name="origin"><option value="">any</option>
        ${options(unique(rows.flatMap((row) => row.origins)), origins)}</select></label>
      <label>Effect <select name="effect"><option value="">any</option>
        ${options(unique(rows.map((row) => row.effect)))}</select></label>
      <label>Dialect <select name="dialect"><option value="">any</option>
        ${options(Object.keys(days))}<option value="day">a date…</option></select></label>
      <label hidden>Date <input name="day" type="date" min="2021-02-28" max="2026-05-20" value="2022-12-14"></label>
      <p><output aria-live="polite"></output>
        <label hidden><input name="all" type="checkbox"> show these too</label></p>`;
    form.insertAdjacentHTML("beforeend", '<p class="none" hidden></p>');
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  /** The state of the form as URL parameters. */
  function stateOf({ q, origin, effect, dialect, day, all }) {
    const state = new URLSearchParams();
    if (q.value.trim()) state.set("q", q.value.trim());
    if (origin.value) state.set("origin", origin.value);
    if (effect.value) state.set("effect", effect.value);
    if (dialect.value) state.set("dialect", dialect.value === "day" ? day.value : dialect.value);
    if (dialect.value && all.checked) state.set("all", "1");
    return state;
  }

  /** Set the form from URL parameters. */
  function restore({ q, origin, effect, dialect, day, all }, state) {
    q.value = state.get("q") ?? "";
    origin.value = state.get("origin") ?? "";
    effect.value = state.get("effect") ?? "";
    const year = state.get("dialect") ?? "";
    dialect.value = !year || year in days ? year : "day";
    if (dialect.value === "day") day.value = year;
    all.checked = state.has("all");
  }

  /** Show the rows that match, those of a query in the order of their ranks and above the tables. */
  function filter(rows, form, state, found) {
    const query = state.get("q") ?? "";
    const rank = ranking(query);
    const day = days[state.get("dialect")] ?? state.get("dialect") ?? "";
    const [origin, effect] = [state.get("origin"), state.get("effect")];
    let shown = 0;
    let unknown = 0;
    for (const row of rows) {
      row.rank = (!origin || row.origins.includes(origin)) && (!effect || row.effect === effect) ? rank(row) : Infinity;
      const matches = row.rank < Infinity;
      const known = !day || (row.since <= day && day < row.until);
      shown += matches && known;
      unknown += matches && !known;
      row.element.hidden = !matches || !(known || state.has("all"));
      row.element.classList.toggle("unknown", !known);
      showDefault(row.defaults, day);
    }
    // In their own order all rows return to their tables; sort() keeps this order among equal ranks.
    for (const row of rows) row.home.append(row.element);
    if (query) {
      const ranked = rows.filter((row) => row.rank < Infinity).sort((a, b) => a.rank - b.rank);
      found.querySelector("tbody").append(...ranked.map((row) => row.element));
    }
    for (const section of page.querySelectorAll("section")) section.hidden = !section.querySelector("tbody tr:not([hidden])");
    const count = (kind) => rows.filter((row) => row.kind === kind).length;
    const kinds = `${count("parameter")} parameters, ${count("section")} sections, ${count("spelling")} older or other spellings`;
    const summary = `${shown} of ${rows.length} names (${kinds})`;
    const hidden = `${unknown} more match, but GPT-NeoX did not have them at that date`;
    form.querySelector("output").textContent = unknown ? `${summary}; ${hidden}.` : summary;
    const none = form.querySelector(".none");
    none.hidden = shown > 0 || (unknown > 0 && state.has("all"));
    const filters = origin || effect || day ? "set Origin, Effect and Dialect to any" : "";
    const advice = [query ? "use fewer or shorter words" : "", filters].filter(Boolean).join(", or ");
    none.textContent = `No name matches${query ? ` \u201c${query}\u201d` : " these filters"}: ${advice}.`;
    form.elements.all.parentElement.hidden = !unknown;
    form.elements.day.parentElement.hidden = form.elements.dialect.value !== "day";
  }

  function start() {
    const rows = [...page.querySelectorAll("tbody tr")].map(read);
    const form = filterForm(rows);
    const found = document.createElement("section");
    found.innerHTML = "<h2>Matches</h2><table><tbody></tbody></table>";
    page.querySelector("details").before(form);
    page.querySelector("details").after(found);

    const applyAddress = () => {
      const fragment = location.hash.slice(1);
      restore(form.elements, new URLSearchParams(fragment.includes("=") ? fragment : ""));
      filter(rows, form, stateOf(form.elements), found);
      if (fragment && !fragment.includes("=")) document.getElementById(decodeURIComponent(fragment))?.scrollIntoView({ behavior: "instant" });
    };
    const applyForm = () => {
      const state = stateOf(form.elements);
      history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
      filter(rows, form, state, found);
    };
    form.addEventListener("input", applyForm);
    window.addEventListener("hashchange", applyAddress);
    applyAddress();
  }

  if (page?.querySelector("table")) start();
})();
