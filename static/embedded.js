// The page inside someone else's (embed.html, made by tools/embed.py): its look from the address, its height told to the
// page around it, results that the build has of what is asked for (tools/examples.py), Python started at the first touch.
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
  // Whose results are below: those that the build computed of the default scenario, or of one of the page's examples.
  let shown = null;
  const offer = () => {
    const names = [named("model", "model-list"), named("gpu", "gpu-list")].filter(Boolean);
    document.getElementById("wake").textContent = names.length ? `Calculate ${names.join(" on ")}` : "Calculate here";
    const place = exampleAsked();
    const [model, gpu] = shown?.names ?? ["model", "gpu"].map((key) => document.getElementById(key).value);
    document.getElementById("asleep-says").textContent = shown && shown.place === place
      ? `Below is what was computed for ${model} on ${gpu} when the calculator was built.`
      : `Until then, an example: ${model} on ${gpu}.`;
    document.getElementById("asleep").hidden = false;
    if (place >= 0 && shown?.place !== place) show(place);
  };

  const sorted = (scenario) => {
    LOOKS.forEach((key) => scenario.delete(key));
    scenario.sort();
    return String(scenario);
  };
  const exampleAsked = () => {
    const asked = sorted(given());
    const links = [...document.querySelectorAll(".examples a")];
    return links.findIndex(({ hash }) => sorted(new URLSearchParams(hash.slice(1))) === asked);
  };
  // Without a network, or in a frame that may fetch nothing, the default example stays.
  const show = async (place) => {
    const answer = await fetch(`./examples/${place}.json`).catch(() => null);
    if (!answer?.ok) return;
    const { names, sections, figures } = await answer.json();
    if (root.dataset.embed !== "asleep" || exampleAsked() !== place) return;
    shown = { place, names };
    for (const mount of document.querySelectorAll("[data-section]"))
      [mount.dataset.digest, mount.innerHTML] = sections[mount.dataset.section];
    for (const mount of document.querySelectorAll("[data-figure]")) {
      mount.innerHTML = figures[mount.dataset.figure] ?? "";
      mount.hidden = !mount.firstChild;
    }
    for (const section of document.querySelectorAll("[data-shows]"))
      section.hidden = !document.querySelector(`[data-section="${section.dataset.shows}"]`).firstChild;
    offer();
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
