// On a small screen, and inside someone else's page, the scenario's groups start as one line each. Runs where the form ends, before anything is painted.
if (matchMedia("(max-width: 60rem)").matches || document.documentElement.dataset.embed)
  for (const group of document.querySelectorAll("#scenario > .group")) group.open = false;
