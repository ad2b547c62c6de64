// Keeps the page for offline use. It lies beside index.html because a service worker reaches only what lies below it.
// Workbox does the work: at the first visit every file of the site is stored, each under the hash of its content, so a
// new version fetches only what changed; it waits until the page asks for it; and entries of older versions are removed
// from this site's own cache alone, since other sites may share the origin.
importScripts(
  "vendor/workbox/workbox-core.prod.js",
  "vendor/workbox/workbox-routing.prod.js",
  "vendor/workbox/workbox-strategies.prod.js",
  "vendor/workbox/workbox-precaching.prod.js",
);

// The build puts the list of files here: [{ url, revision, integrity }, ...].
const FILES = self.__WB_MANIFEST;

// The cache's name ends with the folder that this worker serves, which Workbox adds.
workbox.core.setCacheNameDetails({ prefix: "batch-size-optimizer" });
workbox.core.clientsClaim();
workbox.precaching.addPlugins([
  {
    // The page has just fetched the same files: let the browser ask whether they changed rather than fetch them again.
    requestWillFetch: async ({ request }) => new Request(request, { cache: "no-cache" }),
    // Workbox would keep a second copy of each file in memory, which nobody reads while the site is stored.
    fetchDidSucceed: async ({ event, response }) =>
      event.type === "install" ? Object.defineProperty(response, "clone", { value: () => response }) : response,
  },
]);
// Without their hashes, for which the browser would hold each file whole in memory: `repair` checks what is stored.
workbox.precaching.precacheAndRoute(FILES.map(({ url, revision }) => ({ url, revision })), {
  cleanURLs: false,
  // A link's options do not change which file answers. Only `fresh` goes around the cache, to repair what it holds.
  ignoreURLParametersMatching: [/^(?!fresh$)/],
});

const sha256 = async (response) => {
  const digest = await crypto.subtle.digest("SHA-256", await response.arrayBuffer());
  return "sha256-" + btoa(String.fromCharCode(...new Uint8Array(digest)));
};

// Fetches again each file whose stored copy is missing or damaged. Throws where one cannot be had.
async function repair() {
  const cache = await caches.open(workbox.core.cacheNames.precache);
  for (const { url, integrity } of FILES) {
    const key = workbox.precaching.getCacheKeyForURL(url);
    const stored = await cache.match(key);
    if (stored && (await sha256(stored)) === integrity) continue;
    const fresh = await fetch(url, { integrity, cache: "reload" });
    if (!fresh.ok) throw new Error(`${url} answered ${fresh.status}`);
    await cache.put(key, fresh);
  }
}

const ANSWERS = {
  // The page has shown that a new version waits, and its user wants it now.
  update: () => self.skipWaiting(),
  // Answers whether every file is there, whole.
  repair: (event) =>
    event.waitUntil(
      repair().then(
        () => event.ports[0].postMessage({ complete: true }),
        (error) => event.ports[0].postMessage({ complete: false, reason: String(error) }),
      ),
    ),
};
self.addEventListener("message", (event) => ANSWERS[event.data]?.(event));
