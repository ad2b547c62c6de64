// Before Python: the theme, so that nothing flashes, and a message when Python's own start fails.
(() => {
  const root = document.documentElement;
  const wanted = new URLSearchParams(location.hash.slice(1)).get("theme");
  let kept = null;
  try { kept = localStorage.getItem("batch-size-optimizer:theme"); } catch { /* the browser keeps nothing for this page */ }
  const theme = [wanted, kept].find((name) => name === "light" || name === "dark");
  if (theme) root.dataset.theme = theme;

  const START_SECONDS = 30;
  const fail = (why) => {
    if (root.dataset.app !== "static") return;
    const alert = document.getElementById("alert");
    if (!alert) {
      addEventListener("DOMContentLoaded", () => fail(why), { once: true });
      return;
    }
    root.dataset.app = "error";
    document.getElementById("alert-text").textContent =
      `The calculator could not start: ${why} What you see is an example, computed when this page was built.`;
    document.getElementById("retry").onclick = () => location.reload();
    alert.hidden = false;
  };
  // Resource errors do not bubble, so they are caught on their way down.
  addEventListener("error", (event) => {
    const { tagName, src, href } = event.target ?? {};
    if (tagName === "SCRIPT" || tagName === "LINK") fail(`${(src || href).split("/").pop()} did not load.`);
    else if (event.message) fail(event.message);
  }, true);
  addEventListener("unhandledrejection", (event) => fail(String(event.reason?.message ?? event.reason)));
  // PyScript says in the console alone that the page's program is missing.
  fetch("./main.py").then(({ ok }) => ok || fail("main.py did not load."), () => fail("main.py did not load."));
  setTimeout(() => fail(`nothing happened for ${START_SECONDS} seconds.`), START_SECONDS * 1000);
})();
