// Offline use, seen from the page: registers the service worker once the page has shown its results, says on
// <html data-offline="..."> how far it is, and offers a new version without forcing it on anyone.
//   (absent)     nothing known yet, or no service worker can run here: all but offline use works
//   preparing    the files are being stored
//   ready        every file is stored, checked: the page works without a network, and starts faster where that can be
//   update       a new version is stored and waits
const root = document.documentElement;
const show = (state) => (root.dataset.offline = state);
const wasControlled = Boolean(navigator.serviceWorker?.controller);
const EXERCISED = "batch-size-optimizer:exercised";
const ANSWER_SECONDS = 30;
const COMPILED_MILLISECONDS = 2000;

// Not before the page has what it needs, so as not to compete for the line.
const shown = new Promise((resolve) => {
  const settled = () => ["ready", "error"].includes(root.dataset.app) && resolve();
  new MutationObserver(settled).observe(root, { attributeFilter: ["data-app"] });
  settled();
});

function ask(worker, question) {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = ({ data }) => resolve(data);
    worker.postMessage(question, [port2]);
  });
}

function offer(registration) {
  show("update");
  document.getElementById("offline-offer").hidden = false;
  document.getElementById("offline-update").onclick = ({ target }) => {
    // It may take a moment: what the version before it has begun is brought to its end first.
    target.disabled = true;
    registration.waiting?.postMessage("update");
  };
}

function watch(registration) {
  if (registration.waiting && navigator.serviceWorker.controller) offer(registration);
  registration.addEventListener("updatefound", () => {
    const worker = registration.installing;
    worker.addEventListener("statechange", () => {
      // Without a controller it is the first version, which waits for nobody.
      if (worker.state === "installed" && navigator.serviceWorker.controller) offer(registration);
    });
  });
}

// Has Python work until the browser keeps its machine code (calc/exercise.py), in moments when nobody wants anything; once
// for each browser and Python. Browsers made of V8 need it, which say what they are, and keep what the service worker
// has answered.
async function exercise() {
  if (!wasControlled || !navigator.userAgentData) return;
  const { fullVersionList } = await navigator.userAgentData.getHighEntropyValues(["fullVersionList"]);
  const ask = async (...question) => JSON.parse(await globalThis.python.ask(ANSWER_SECONDS, ...question));
  const wanted = JSON.stringify([(await ask("hello")).python, fullVersionList]);
  if (localStorage.getItem(EXERCISED) === wanted) return;
  for (let left = 1, turn = 0; left; turn++) {
    await new Promise((resolve) => requestIdleCallback(resolve));
    ({ left } = await ask("exercise", turn));
  }
  // What it has made hot is still being compiled.
  setTimeout(() => localStorage.setItem(EXERCISED, wanted), COMPILED_MILLISECONDS);
}

async function prepare() {
  await shown;
  // Beside the rest: a visit may be short.
  exercise().catch(({ message }) => console.info(`Machine code may not be kept: ${message}`));
  const registration = await navigator.serviceWorker.register(new URL("../sw.js", import.meta.url), {
    updateViaCache: "none",
  });
  watch(registration);
  // What is about to be replaced is neither mended nor kept: its host may no longer have it, and browsers may put a version
  // off for minutes while the one before it is busy.
  if (registration.waiting) return;
  if (!registration.active) show("preparing");
  const { active } = await navigator.serviceWorker.ready;
  const { complete } = await ask(active, "repair");
  const keeper = new Worker(new URL("./keeper.mjs", import.meta.url), { type: "module" });
  await new Promise((resolve) => (keeper.onmessage = keeper.onerror = resolve));
  if (complete && root.dataset.offline !== "update") show("ready");
}

// Private windows, sandboxed frames and settings may forbid it in their own ways; the page works the same without.
if ("serviceWorker" in navigator) prepare().catch((error) => console.info(`No offline use here: ${error.message}`));
