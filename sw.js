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
// What a start asks this worker for after it has begun, which is most in bytes and least in number.
const LARGE = /^(calc\.zip|vendor\/(pyodide|snapshot)\/)/;

// The caches' names end with the folder that this worker serves.
workbox.core.setCacheNameDetails({ prefix: "batch-size-optimizer" });
workbox.core.clientsClaim();
const { cacheNames } = workbox.core;
const precache = new workbox.precaching.PrecacheController({
  plugins: [
    {
      // The page has just fetched the same files: let the browser ask whether they changed rather than fetch them again.
      requestWillFetch: async ({ request }) => new Request(request, { cache: "no-cache" }),
      // Workbox would keep a second copy of each file in memory, which nobody reads while the site is stored.
      fetchDidSucceed: async ({ event, response }) =>
        event.type === "install" ? Object.defineProperty(response, "clone", { value: () => response }) : response,
    },
  ],
});
// Without their hashes, for which the browser would hold each file whole in memory: `repair` checks what is stored.
precache.addToCacheList(FILES.map(({ url, revision }) => ({ url, revision })));
workbox.routing.registerRoute(
  new workbox.precaching.PrecacheRoute(precache, {
    cleanURLs: false,
    // A link's options do not change which file answers. Only `fresh` goes around the cache, to repair what it holds.
    ignoreURLParametersMatching: [/^(?!fresh$)/],
  }),
);

const sha256 = async (response) => {
  const digest = await crypto.subtle.digest("SHA-256", await response.arrayBuffer());
  return "sha256-" + btoa(String.fromCharCode(...new Uint8Array(digest)));
};

// Browsers that take routes answer what a start asks for first without waking this worker. They look for it under its
// plain address, where Workbox has the revision in it: so each version has a cache of its own for it.
const first = FILES.filter(({ url }) => !LARGE.test(url)).map((file) => ({
  ...file,
  address: new URL(file.url === "index.html" ? "./" : file.url, self.registration.scope),
}));
const FIRST_PREFIX = `${cacheNames.prefix}-first-`;
const firstName = sha256(new Response(JSON.stringify(first))).then(
  (version) => `${FIRST_PREFIX}${version}-${self.registration.scope}`,
);

async function answerWithoutWorker(event) {
  const cacheName = await firstName;
  const cache = await caches.open(cacheName);
  for (const { url, address } of first) await cache.put(address, await precache.matchPrecache(url));
  const condition = ({ pathname }) => ({ urlPattern: new URLPattern({ pathname, search: "" }) });
  await event.addRoutes(first.map(({ address }) => ({ condition: condition(address), source: { cacheName } })));
}

async function dropOlder() {
  const current = await firstName;
  // A deeper folder of the origin may hold another copy of this page.
  const own = (name) => name.startsWith(FIRST_PREFIX) && name.endsWith(`-${self.registration.scope}`);
  const older = (await caches.keys()).filter((name) => own(name) && name !== current);
  await Promise.all(older.map((name) => caches.delete(name)));
}

self.addEventListener("install", (event) => {
  const stored = precache.install(event);
  // Where it cannot be, this worker answers everything.
  if (event.addRoutes) event.waitUntil(stored.then(() => answerWithoutWorker(event)).catch(() => {}));
});
self.addEventListener("activate", (event) => {
  precache.activate(event);
  event.waitUntil(dropOlder());
});

// Fetches again each file of which a stored copy is missing or damaged. Throws where one cannot be had.
async function repair() {
  const stored = await caches.open(cacheNames.precache);
  const name = await firstName;
  const copies = new Map(FILES.map(({ url }) => [url, [[stored, precache.getCacheKeyForURL(url)]]]));
  if (await caches.has(name)) {
    const cache = await caches.open(name);
    for (const { url, address } of first) copies.get(url).push([cache, address]);
  }
  for (const { url, integrity } of FILES) {
    for (const [cache, key] of copies.get(url)) {
      const copy = await cache.match(key);
      if (copy && (await sha256(copy)) === integrity) continue;
      const fresh = await fetch(url, { integrity, cache: "reload" });
      if (!fresh.ok) throw new Error(`${url} answered ${fresh.status}`);
      await cache.put(key, fresh);
    }
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
