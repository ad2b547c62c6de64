// Runs once the form is there: closes the groups that static/early.js has shown as closed from their first paint on.
if ("folded" in document.documentElement.dataset) {
  for (const group of document.querySelectorAll("#scenario > .group")) group.open = false;
  delete document.documentElement.dataset.folded;
}
