// The state of the page in the fragment of its address, which browsers send to no server.

/** Return a fragment for an object that JSON can hold. */
export async function toFragment(state) {
  const packed = new Blob([JSON.stringify(state)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const letters = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `#file=${letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** Return the object of a fragment, or null if it holds none. */
export async function fromFragment(fragment) {
  const letters = fragment.match(/^#file=([\w-]+)$/)?.[1];
  if (!letters) return null;
  try {
    const bytes = Uint8Array.from(atob(letters.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return await new Response(text).json();
  } catch {
    return null; // a link that was cut
  }
}
