"""Find the browser that the end-to-end tests and the benchmarks drive, or bring one."""

import os
import shutil
import subprocess
import sys

INSTALLED_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# The sandbox needs rights that containers lack; the rest keeps the browser from talking to anyone but the page's host.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str | None:
    """Return the path of an installed Chromium or Chrome; None leaves the choice to Playwright's own."""
    return next(filter(None, map(shutil.which, INSTALLED_NAMES)), None)


def install() -> bool:
    """Bring a browser where none is installed: Playwright's own first, then the system's package.

    Returns
    -------
    bool
        Whether there is one now.
    """
    if executable():
        return True
    playwright = [sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"]
    if subprocess.run(playwright, stdin=subprocess.DEVNULL, check=False).returncode == 0:
        return True
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", *arguments], stdin=subprocess.DEVNULL, env=environment, check=False)
    return executable() is not None


if __name__ == "__main__":
    if not install():
        sys.exit("error: no Chromium: install one, by name chromium or google-chrome, and try again")
