// Before Python: the theme, so that nothing flashes, a message when Python's own start fails, and the worker's start where
// nothing has to come over the network.
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
  // At a first visit the form comes first: main.py starts the worker once it reacts. Later the worker need not wait.
  if (navigator.serviceWorker?.controller) {
    const script = document.createElement("script");
    const attributes = { type: "py", worker: "", name: "calc", src: "./calc/worker.py", config: "./pyscript.toml" };
    for (const [name, value] of Object.entries(attributes)) script.setAttribute(name, value);
    document.head.append(script);
  }
  setTimeout(() => fail(`nothing happened for ${START_SECONDS} seconds.`), START_SECONDS * 1000);
})();
