// Python in a worker: a message {id, name, values} calls a function of bridge.py and is answered {id, answer}.
import { loadPyodide } from "./pyodide.mjs";

const fetchAsIs = self.fetch;
self.fetch = (address, options) =>
  String(address).endsWith(".wasm") ? unpacked(`${address}.packed`) : fetchAsIs(address, options);

async function unpacked(address) {
  const { body } = await fetchAsIs(address);
  return new Response(body.pipeThrough(new DecompressionStream("gzip")), { headers: { "Content-Type": "application/wasm" } });
}

async function start() {
  const archive = fetchAsIs(new URL("python.zip", import.meta.url)).then((response) => response.arrayBuffer());
  const stdLibURL = new URL("python_stdlib.zip", import.meta.url).href;
  const python = await loadPyodide({ stdLibURL, env: { HOME: "/home", NO_COLOR: "1" } });
  python.unpackArchive(await archive, "zip", { extractDir: "/deepy" });
  python.runPython("import os, sys; sys.path.insert(0, '/deepy'); os.makedirs('/home/files'); os.chdir('/home/files')");
  return python.pyimport("bridge").answer;
}

const started = start();
self.onmessage = async ({ data: { id, name, values } }) => {
  try {
    const call = await started;
    self.postMessage({ id, answer: JSON.parse(call(name, JSON.stringify(values))) });
  } catch (error) {
    console.error(error);
    const lines = String(error.message ?? error).split("\n");
    self.postMessage({ id, failure: lines.findLast((line) => /^\w+: /.test(line)) ?? lines[0] });
  }
};
