// Before Python: the theme, so that nothing flashes, a message when Python's own start fails, and the start of the worker.
(() => {
  const root = document.documentElement;
  const wanted = new URLSearchParams(location.hash.slice(1)).get("theme");
  let kept = null;
  try { kept = localStorage.getItem("batch-size-optimizer:theme"); } catch { root.dataset.storage = "refused"; }
  const theme = [wanted, kept].find((name) => name === "light" || name === "dark");
  if (theme) root.dataset.theme = theme;
  // On a small screen the scenario's groups start as one line each: looks so at once, is so from static/fold.js on.
  // A page that is embedded (static/embedded.js) runs this later, when its groups are folded already.
  if (document.readyState === "loading" && matchMedia("(max-width: 60rem)").matches) root.dataset.folded = "";

  const START_SECONDS = 30;
  const LOOK_MILLISECONDS = 5;
  const say = (text, { alone = false } = {}) => {
    if (root.dataset.app !== "static") return;
    const alert = document.getElementById("alert");
    if (!alert) {
      addEventListener("DOMContentLoaded", () => say(text, { alone }), { once: true });
      return;
    }
    root.dataset.app = "error";
    document.getElementById("alert-text").textContent = `${text} What you see is an example, computed when this page was built.`;
    document.getElementById("retry").onclick = () => location.reload();
    document.getElementById("retry").hidden = alone;
    document.getElementById("alone").hidden = !alone;
    alert.hidden = false;
  };
  const fail = (why) => say(`The calculator could not start: ${why}`);
  const refuse = () => {
    root.dataset.storage = "refused";
    say("This browser refuses storage to this page, as it does in a sandboxed frame, and Python cannot start without it.", { alone: true });
  };

  // Python's loader keeps a cache, and stops without a word where it may not.
  try {
    const probe = indexedDB.open("batch-size-optimizer-probe");
    probe.onsuccess = () => probe.result.close();
    probe.onerror = (event) => { event.preventDefault(); refuse(); };
  } catch { refuse(); }

  // Resource errors do not bubble, so they are caught on their way down.
  addEventListener("error", (event) => {
    const { tagName, src, href } = event.target ?? {};
    if (tagName === "SCRIPT" || tagName === "LINK") fail(`${(src || href).split("/").pop()} did not load.`);
    else if (event.message) fail(event.message);
  }, true);
  addEventListener("unhandledrejection", (event) => fail(String(event.reason?.message ?? event.reason)));
  // PyScript says in the console alone that the page's program is missing.
  fetch("./main.py").then(({ ok }) => ok || fail("main.py did not load."), () => fail("main.py did not load."));

  // Starts a worker that runs calc/worker.py, and beside it the one that brings its snapshot. The element from which
  // PyScript makes it hears of both as `said` events.
  globalThis.startWorker = (name) => {
    const script = document.createElement("script");
    const version = new URL("./static/interpreter.mjs", document.baseURI).href;
    const attributes = { type: "pyodide", worker: "", name, src: "./calc/worker.py", version, config: "{}" };
    for (const [key, value] of Object.entries(attributes)) script.setAttribute(key, value);
    const heard = ({ data }) => {
      if (!data?.total && !data?.failed) return;
      const { done = 0, total = 0, failed = "" } = data;
      script.failed = failed;
      script.dispatchEvent(new CustomEvent("said", { detail: { done, total, failed } }));
    };
    const carrier = new Worker("./static/carrier.mjs", { type: "module" });
    let broken = "";
    carrier.addEventListener("message", heard);
    carrier.addEventListener("error", (event) => {
      event.preventDefault();
      broken = event.message || "static/carrier.mjs did not load";
    });
    const asked = ({ data, ports: [port] }) => {
      if (data?.wants !== "snapshot") return;
      if (broken) port.postMessage({ failed: broken });
      else carrier.postMessage("answer", [port]);
    };
    const listen = () => {
      if (!script.xworker) return setTimeout(listen, LOOK_MILLISECONDS);
      script.xworker.addEventListener("message", asked);
      script.xworker.addEventListener("message", heard);
    };
    // PyScript tells nobody when it has made it.
    listen();
    document.head.append(script);
    return script;
  };
  const painted = () => {
    // What PyScript will ask for, ahead of time.
    for (const link of document.querySelectorAll("link[data-rel]")) link.rel = link.dataset.rel;
    // At a first visit the form comes first: page/runtime.py starts the worker once it reacts. Later the worker need not
    // wait, since nothing has to come over the network.
    if (navigator.serviceWorker?.controller && root.dataset.storage !== "refused") globalThis.startWorker("calc");
  };
  // Not before the first paint, whose files would have to share the line. Where the browser does not tell of it, as in a
  // tab that nobody sees, all this happens a little later without it.
  new PerformanceObserver((_, observer) => {
    observer.disconnect();
    painted();
  }).observe({ type: "paint", buffered: true });
  setTimeout(() => fail(`nothing happened for ${START_SECONDS} seconds.`), START_SECONDS * 1000);
})();
