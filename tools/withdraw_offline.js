// Put in the place of sw.js (tools/withdraw_offline.py) it takes back what sw.js keeps: browsers look for a newer service
// worker at each visit, find this one, and are rid of both. It answers no request, so pages come from the host.
const OWN_PREFIX = "batch-size-optimizer";

self.addEventListener("install", () => self.skipWaiting());

// Others may share the origin, and a deeper folder of it may hold another copy of this page.
const own = (name) => name.startsWith(OWN_PREFIX) && name.endsWith(self.registration.scope);
const clearCaches = async () => Promise.all((await caches.keys()).filter(own).map((name) => caches.delete(name)));
// What static/kept.mjs keeps, by the same name; where there is nothing, or not yet for a tab that reads it, it fails.
const clearKept = async () => {
  const root = await navigator.storage.getDirectory();
  const { pathname } = new URL(self.registration.scope);
  await root.removeEntry(`${OWN_PREFIX} ${encodeURIComponent(pathname)}`, { recursive: true }).catch(() => {});
};
const clear = () => Promise.all([clearCaches(), clearKept()]);

async function withdraw() {
  await clear();
  await self.registration.unregister();
}
// What the worker before this one was still answering may open its cache anew.
async function clearAgain() {
  for (const seconds of [1, 4, 10, 15]) {
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    await clear();
  }
}
// Not waited for: pages wait until a worker is activated.
self.addEventListener("activate", (event) => event.waitUntil(withdraw().then(() => void clearAgain())));
// A stored page that is still open registers this worker anew, which undoes the removal, and then asks it for repair. Here
// it is waited for: a worker that is registered no longer may be stopped once nothing is.
self.addEventListener("message", (event) => event.waitUntil(withdraw().then(clearAgain)));
