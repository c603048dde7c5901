// Starts `deepy lsp`, and starts it again when a setting changes. All features are those of the server (docs/editors.md).

import { type ExtensionContext, window, workspace } from "vscode";
import { LanguageClient } from "vscode-languageclient/node";

const FILES = [{ language: "yaml" }, { pattern: "**/deepy.toml" }, { pattern: "**/pyproject.toml" }];

let client: LanguageClient | undefined;

async function start(): Promise<void> {
  const settings = workspace.getConfiguration("deepy");
  const command = settings.get("command", "deepy");
  const options = { gpus: settings.get<number | null>("gpus"), machine: settings.get<string>("machine") };
  client = new LanguageClient(
    "deepy",
    { command, args: ["lsp"] },
    { documentSelector: FILES, initializationOptions: options },
  );
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    window.showErrorMessage(`${command} lsp cannot be started (${error}); set deepy.command to the path of deepy`);
  }
}

export async function activate(context: ExtensionContext): Promise<void> {
  const changed = workspace.onDidChangeConfiguration(async (event) => {
    if (event.affectsConfiguration("deepy")) {
      await deactivate();
      await start();
    }
  });
  context.subscriptions.push(changed);
  await start();
}

export async function deactivate(): Promise<void> {
  await client?.stop();
  client = undefined;
}
