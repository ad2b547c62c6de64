// On a small screen the scenario's groups start as one line each. Runs where the form ends, before anything is painted.
if (matchMedia("(max-width: 60rem)").matches)
  for (const group of document.querySelectorAll("#scenario > .group")) group.open = false;
