// Runs once the form is there: closes the groups that static/early.js has shown as closed from their first paint on, and
// puts what the build has put away as text (tools/lean.py) into place when it comes into view, the rest once the page is
// ready.
{
  const root = document.documentElement;
  if ("folded" in root.dataset) {
    for (const group of document.querySelectorAll("#scenario > .group")) group.open = false;
    delete root.dataset.folded;
  }

  const away = new Set([...document.querySelectorAll("noscript")].map(({ parentElement }) => parentElement));
  const bring = (place) => {
    seen.unobserve(place);
    away.delete(place);
    const kept = place.querySelector(":scope > noscript");
    if (kept) place.innerHTML = kept.textContent;
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) bring(target);
  });
  for (const place of away) seen.observe(place);
  addEventListener("beforeprint", () => away.forEach(bring));

  // One at a time, so that the page reacts in between.
  const idle = globalThis.requestIdleCallback ?? setTimeout;
  const bringNext = () => {
    const [next] = away;
    if (!next) return;
    bring(next);
    idle(bringNext);
  };
  new MutationObserver((_, observer) => {
    if (root.dataset.app !== "ready") return;
    observer.disconnect();
    idle(bringNext);
  }).observe(root, { attributeFilter: ["data-app"] });
}
