// node build.mjs MADE SITE: bundle the page, compile Python, and write both into the site with what they load.
// MADE is a folder with the wheel and PyYAML.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { loadPyodide } from "pyodide";

const [made, site] = process.argv.slice(2);
const output = `${site}/playground`;
const pyodide = "node_modules/pyodide";
// Bytes, compressed, that a visitor's first visit may load.
const LIMIT = 8e6;
rmSync(output, { recursive: true, force: true });
mkdirSync(output);

await build({
  entryPoints: ["src/playground.js"],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  loader: { ".yml": "text", ".sh": "text", ".json": "text" },
  outdir: output,
  logLevel: "warning",
});

// Python compiles its sources with the version that runs them in the browser.
copyFileSync("bridge.py", `${made}/bridge.py`);
copyFileSync(`${pyodide}/python_stdlib.zip`, `${made}/stdlib.zip`);
const python = await loadPyodide({ env: { HOME: "/", PYTHONNODEBUGRANGES: "1" } });
python.FS.mkdir("/made");
python.FS.mount(python.FS.filesystems.NODEFS, { root: made }, "/made");
await python.runPythonAsync(readFileSync("pack.py", "utf8"));
for (const name of ["python.zip", "python_stdlib.zip"]) copyFileSync(`${made}/${name}`, `${output}/${name}`);

copyFileSync("src/worker.js", `${output}/worker.js`);
for (const name of ["pyodide.mjs", "pyodide.asm.mjs"]) copyFileSync(`${pyodide}/${name}`, `${output}/${name}`);
// Not every server compresses WebAssembly, so that the worker unpacks it.
writeFileSync(`${output}/pyodide.asm.wasm.packed`, gzipSync(readFileSync(`${pyodide}/pyodide.asm.wasm`), { level: 9 }));
// The list of the packages that pyodide could load, without any.
const { info } = JSON.parse(readFileSync(`${pyodide}/pyodide-lock.json`, "utf8"));
writeFileSync(`${output}/pyodide-lock.json`, JSON.stringify({ info, packages: {} }));

const files = readdirSync(output).sort();
const version = createHash("sha256");
for (const name of files) version.update(readFileSync(`${output}/${name}`));
const offline = readFileSync("src/offline.js", "utf8").replace("VERSION", version.digest("hex").slice(0, 16));
writeFileSync(`${site}/playground-offline.js`, offline);

const total = { bytes: 0, gzip: 0 };
for (const name of files) {
  const data = readFileSync(`${output}/${name}`);
  const sizes = { bytes: data.length, gzip: gzipSync(data).length };
  for (const kind in sizes) total[kind] += sizes[kind];
  print(name, sizes);
}
print("total", total);
if (total.gzip > LIMIT) throw new Error(`the playground is larger than ${LIMIT / 1e6} MB`);

function print(name, sizes) {
  const columns = Object.entries(sizes).map(([kind, bytes]) => `${(bytes / 1e6).toFixed(2).padStart(7)} MB ${kind}`);
  console.log(name.padEnd(26), columns.join(" "));
}
