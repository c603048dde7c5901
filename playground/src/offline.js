// The service worker of the playground: its files are loaded once for each version, and the page works without a network.
const cacheName = "playground-VERSION";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(takeOver()));
self.addEventListener("fetch", (event) => {
  const ofSite = new URL(event.request.url).origin === location.origin;
  if (ofSite && event.request.method === "GET") event.respondWith(answer(event));
});

async function takeOver() {
  const older = (await caches.keys()).filter((name) => name.startsWith("playground-") && name !== cacheName);
  await Promise.all(older.map((name) => caches.delete(name)));
  await self.clients.claim();
}

/** The parts of the playground from the cache, everything else (the page and its style) from the network if there is one. */
async function answer(event) {
  const { request } = event;
  const cache = await caches.open(cacheName);
  const cached = await cache.match(request, { ignoreSearch: true });
  if (cached && new URL(request.url).pathname.includes("/playground/")) return cached;
  try {
    const response = await fetch(request);
    if (response.status === 200) event.waitUntil(cache.put(request, response.clone()));
    return response;
  } catch (error) {
    if (cached) return cached;
    throw error;
  }
}
