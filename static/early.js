// Before Python: the theme, so that nothing flashes, a message when Python's own start fails, and the start of the worker.
(() => {
  const root = document.documentElement;
  const wanted = new URLSearchParams(location.hash.slice(1)).get("theme");
  let kept = null;
  try { kept = localStorage.getItem("batch-size-optimizer:theme"); } catch { root.dataset.storage = "refused"; }
  const theme = [wanted, kept].find((name) => name === "light" || name === "dark");
  if (theme) root.dataset.theme = theme;
  // On a small screen the scenario's groups start as one line each: looks so at once, is so from static/later.js on.
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
  const refuse = () => {
    root.dataset.storage = "refused";
    say("This browser refuses storage to this page, as it does in a sandboxed frame, and Python cannot start without it.", { alone: true });
  };
  // Where storage is refused, that is why, whatever fails first.
  const fail = (why) => (root.dataset.storage === "refused" ? refuse() : say(`The calculator could not start: ${why}`));

  // Resource errors do not bubble, so they are caught on their way down.
  addEventListener("error", (event) => {
    const { tagName, src, href } = event.target ?? {};
    if (tagName === "SCRIPT" || tagName === "LINK") fail(`${(src || href).split("/").pop()} did not load.`);
    else if (event.message) fail(event.message);
  }, true);
  addEventListener("unhandledrejection", (event) => fail(String(event.reason?.message ?? event.reason)));
  const probe = () => {
    // Python's loader keeps a cache, and stops without a word where it may not.
    try {
      const opened = indexedDB.open("batch-size-optimizer-probe");
      opened.onsuccess = () => opened.result.close();
      opened.onerror = (event) => { event.preventDefault(); refuse(); };
    } catch { refuse(); }
    // PyScript says in the console alone that the page's program is missing.
    fetch("./main.py").then(({ ok }) => ok || fail("main.py did not load."), () => fail("main.py did not load."));
  };
  // No earlier: together they put the first paint off by a fifth. An embedded page was loaded long before it is woken.
  if (document.readyState === "complete") probe();
  else addEventListener("load", probe, { once: true });

  // Where storage is refused, asking for it may be an error.
  const serviceWorker = root.dataset.storage === "refused" ? null : navigator.serviceWorker;
  // A new version that its user takes in one tab takes over all (static/offline.mjs), also one that is only starting: its
  // next file would be the new version's. The location holds the scenario, so nothing typed is lost. The first version
  // takes over without a reload.
  let controlled = Boolean(serviceWorker?.controller);
  serviceWorker?.addEventListener("controllerchange", () => {
    if (controlled) location.reload();
    controlled = true;
  });

  // Python in a worker of its own (static/worker.mjs), and beside it the one that brings its snapshot. Tells in `said`
  // events how much of the snapshot has come.
  class Python extends EventTarget {
    #workers = {};
    #waiting = new Map();
    #asked = 0;
    #begun = false;
    #broken = "";
    // What earlier visits have kept unpacked. Not asked for at a first visit, nor after something went wrong with it.
    #mayBeKept = controlled && !Python.#made;
    static #made = false;

    constructor() {
      super();
      Python.#made = true;
      for (const name of ["worker", "carrier"]) {
        const worker = new Worker(`./static/${name}.mjs`, { type: "module" });
        worker.addEventListener("message", ({ data }) => this.#hear(data));
        worker.addEventListener("error", (event) => {
          event.preventDefault();
          this.#hear({ broken: name, text: event.message || `static/${name}.mjs did not load` });
        });
        this.#workers[name] = worker;
      }
    }

    // Lets the workers, which have read no more than their own code, bring Python and the snapshot; once is enough.
    begin() {
      if (this.#begun) return;
      this.#begun = true;
      const { port1, port2 } = new MessageChannel();
      this.#workers.worker.postMessage({ snapshot: port1 }, [port1]);
      this.#workers.carrier.postMessage({ mayBeKept: this.#mayBeKept }, [port2]);
    }

    #hear({ id, value, failed, broken, text, ...said }) {
      if (id) {
        this.#waiting.get(id)?.(failed, value);
      } else if (broken === "carrier") {
        this.#workers.worker.postMessage({ broken: text });
      } else if (broken) {
        this.#broken = text;
        for (const settle of this.#waiting.values()) settle(text);
      } else {
        this.dispatchEvent(new CustomEvent("said", { detail: said }));
      }
    }

    // Calls a function of calc/worker.py. Gives its answer; fails with what it says, where there is no Python, and as a
    // TimeoutError where there is no answer within so many seconds: a worker that hangs says nothing.
    ask(seconds, name, ...values) {
      if (this.#broken) return Promise.reject(new Error(this.#broken));
      const answered = new Promise((resolve, reject) => {
        const id = ++this.#asked;
        const late = setTimeout(() => {
          this.#waiting.delete(id);
          reject(new DOMException(`no answer within ${seconds} seconds`, "TimeoutError"));
        }, seconds * 1000);
        this.#waiting.set(id, (failed, value) => {
          clearTimeout(late);
          this.#waiting.delete(id);
          failed === undefined ? resolve(value) : reject(new Error(failed));
        });
        this.#workers.worker.postMessage({ id, name, values });
      });
      // One that is asked for ahead fails in the sight of those who wait for it, and for nobody else.
      answered.catch(() => {});
      return answered;
    }

    stop() {
      for (const worker of Object.values(this.#workers)) worker.terminate();
    }
  }
  globalThis.newPython = () => (globalThis.python = new Python());
  // At a first visit the form comes first: page/runtime.py lets Python begin once it reacts. Later it need not wait, since
  // nothing has to come over the network.
  if (controlled) globalThis.newPython().begin();

  const painted = () => {
    // What PyScript will ask for, ahead of time.
    for (const link of document.querySelectorAll("link[data-rel]")) link.rel = link.dataset.rel;
    if (!globalThis.python && root.dataset.storage !== "refused") globalThis.newPython();
  };
  // Not before the first paint, whose files would have to share the line. Where the browser does not tell of it, as in a
  // tab that nobody sees, all this happens a little later without it.
  new PerformanceObserver((_, observer) => {
    observer.disconnect();
    painted();
  }).observe({ type: "paint", buffered: true });
  setTimeout(() => fail(`nothing happened for ${START_SECONDS} seconds.`), START_SECONDS * 1000);
})();
