// The page inside someone else's (embed.html, made by tools/embed.py): its look from the address, its height told to the
// page around it, and Python started at the first touch.
(() => {
  const root = document.documentElement;
  const VIEWS = ["memory", "plan", "tradeoff", "all"];
  const LOOKS = ["view", "theme"];
  const given = () => new URLSearchParams(location.hash.slice(1));

  const look = () => {
    const { view, theme } = Object.fromEntries(given());
    root.dataset.view = VIEWS.includes(view) ? view : "all";
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  look();
  root.dataset.folded = "";

  // The whole page of the same scenario, in a tab of its own.
  const whole = () => {
    const scenario = given();
    for (const key of LOOKS) scenario.delete(key);
    return `./${scenario.size ? "#" : ""}${scenario}`;
  };
  addEventListener("click", ({ target }) => {
    const link = target.closest?.("[data-full], #alone");
    if (link) link.href = whole();
  }, true);

  const named = (key, list) => {
    const id = given().get(key);
    return id ? document.querySelector(`#${list} [data-value="${CSS.escape(id)}"]`)?.firstChild.textContent ?? id : "";
  };
  const offer = () => {
    const names = [named("model", "model-list"), named("gpu", "gpu-list")].filter(Boolean);
    document.getElementById("wake").textContent = names.length ? `Calculate ${names.join(" on ")}` : "Calculate here";
    // Below is what the build computed, whatever was asked for: say so.
    const [model, gpu] = ["model", "gpu"].map((key) => document.getElementById(key).value);
    document.getElementById("asleep-says").textContent = `Until then, an example: ${model} on ${gpu}.`;
    document.getElementById("asleep").hidden = false;
  };

  const wake = () => {
    if (root.dataset.embed !== "asleep") return;
    root.dataset.embed = "awake";
    for (const element of document.getElementById("runtime").content.cloneNode(true).children) {
      const copy = document.importNode(element, true);
      if (copy.localName === "script") copy.async = false;
      document.head.append(copy);
    }
  };

  addEventListener("hashchange", () => {
    look();
    if (root.dataset.embed === "asleep") offer();
  });
  addEventListener("DOMContentLoaded", () => {
    offer();
    document.getElementById("results").addEventListener("click", ({ target }) => target.closest("a, summary") ?? wake());
    document.getElementById("wake").addEventListener("click", wake);
    if (parent === window) return;
    // A height and nothing else; the page around may be any.
    const tell = () => parent.postMessage({ type: "batch-size-optimizer:height", height: Math.ceil(document.body.offsetHeight) }, "*");
    new ResizeObserver(tell).observe(document.body);
  });
})();
