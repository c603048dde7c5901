// CodeMirror as the page uses it. Python counts columns in characters from 1, CodeMirror in UTF-16 units.

import { autocompletion } from "@codemirror/autocomplete";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { unifiedMergeView } from "@codemirror/merge";
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";

const colours = HighlightStyle.define([
  { tag: [tags.definition(tags.propertyName), tags.propertyName], class: "key" },
  { tag: [tags.comment, tags.lineComment], class: "comment" },
  { tag: [tags.string, tags.content, tags.attributeValue, tags.literal], class: "value" },
]);

const COMMON = [basicSetup, yaml(), syntaxHighlighting(colours), EditorView.lineWrapping];

/** Make an editor. changed, moved: called after a change of the text, or of the position of the cursor. */
export function makeEditor({ parent, label, text, changed, moved, complete }) {
  return new EditorView({
    parent,
    doc: text,
    extensions: [
      COMMON,
      lintGutter(),
      EditorView.contentAttributes.of({ "aria-label": label }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) changed?.();
        if (update.docChanged || update.selectionSet) moved?.();
      }),
      complete ? autocompletion({ override: [(context) => completions(context, complete)] }) : [],
    ],
  });
}

/** Show a text that cannot be edited; with an older text, the lines that differ from it are marked. */
export function showText({ parent, label, text, older }) {
  const difference = unifiedMergeView({ original: older ?? "", mergeControls: false, allowInlineDiffs: true });
  return new EditorView({
    parent,
    doc: text,
    extensions: [
      COMMON,
      EditorState.readOnly.of(true),
      EditorView.contentAttributes.of({ "aria-label": label, "aria-readonly": "true" }),
      older === undefined ? [] : difference,
    ],
  });
}

async function completions(context, complete) {
  const word = context.matchBefore(/[\w./-]+/);
  if (!word && !context.explicit) return null;
  const line = context.state.doc.lineAt(context.pos);
  const column = [...line.text.slice(0, context.pos - line.from)].length;
  const { begin, is_value, words } = await complete(context.state.doc.toString(), line.number - 1, column);
  const options = words.map(({ word, detail, meaning }) => ({
    label: word,
    apply: is_value ? word : `${word}: `,
    detail,
    info: meaning || undefined,
    type: is_value ? "constant" : "property",
  }));
  return options.length ? { from: line.from + units(line.text, begin), options } : null;
}

/** The line and column of the cursor, in characters from 0. */
export function position(view) {
  const { head } = view.state.selection.main;
  const line = view.state.doc.lineAt(head);
  return [line.number - 1, [...line.text.slice(0, head - line.from)].length];
}

/** Show problems at their places. fix: called with a problem whose correction is wanted. */
export function showProblems(view, problems, fix) {
  const { doc } = view.state;
  const diagnostics = problems.map((problem) => {
    const [from, to] = range(doc, problem);
    const message = [problem.what, problem.hint].filter(Boolean).join("\n");
    const actions = problem.fixed === null ? [] : [{ name: "Fix", apply: () => fix(problem) }];
    return { from, to, severity: problem.severity, message, source: problem.id, actions };
  });
  view.dispatch(setDiagnostics(view.state, diagnostics));
}

/** Select the characters of a problem, and scroll to them. */
export function goTo(view, problem) {
  const [anchor, head] = range(view.state.doc, problem);
  view.dispatch({ selection: { anchor, head }, effects: EditorView.scrollIntoView(anchor, { y: "center" }) });
  view.focus();
}

/** Replace the text, but only the part that differs, so that the cursor and what can be undone stay. */
export function replaceText(view, text) {
  const old = view.state.doc.toString();
  let from = 0;
  while (from < Math.min(old.length, text.length) && old[from] === text[from]) from++;
  let same = 0;
  while (same < Math.min(old.length, text.length) - from && old.at(-1 - same) === text.at(-1 - same)) same++;
  view.dispatch({ changes: { from, to: old.length - same, insert: text.slice(from, text.length - same) }, userEvent: "input.fix" });
}

function range(doc, { line: number, column, width }) {
  if (!number || number > doc.lines) return [0, 0];
  const line = doc.line(number);
  const start = units(line.text, column - 1);
  return [line.from + start, line.from + start + units(line.text.slice(start), Math.max(1, width))];
}

/** The UTF-16 units of the first characters of a text. */
function units(text, characters) {
  return [...text].slice(0, characters).join("").length;
}
