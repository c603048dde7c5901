// Starts the playground, which `playground/build` has written beside the pages; without it, the page says what is missing.
(() => {
  "use strict";
  if (!document.getElementById("try")) return;
  const folder = new URL("../playground/", document.currentScript.src);
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("playground.css", folder) });
  import(new URL("playground.js", folder)).then(() => document.head.append(style), () => {});
})();
