"""Bring the browsers besides Chromium that the page is tried in: Firefox and WebKit, from the system's packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

FIREFOX_NAMES = ("firefox-esr", "firefox")
WEBKIT_DRIVER = "WebKitWebDriver"
PACKAGES = ("firefox-esr", "webkit2gtk-driver", "xvfb", "xauth")


def firefox() -> str | None:
    """Return the path of an installed Firefox."""
    return next(filter(None, map(shutil.which, FIREFOX_NAMES)), None)


def webkit_browser() -> str | None:
    """Return the path of WebKitGTK's own small browser, where its driver is installed too."""
    found = sorted(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"))
    return str(found[-1]) if found and shutil.which(WEBKIT_DRIVER) else None


def main() -> None:
    """Install what is missing, where the system has it."""
    if firefox() and webkit_browser() and shutil.which("xvfb-run"):
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        subprocess.run(["apt-get", *arguments], stdin=subprocess.DEVNULL, env=environment, check=False)
    if not (firefox() or webkit_browser()):
        sys.exit(f"error: neither Firefox nor WebKitGTK: install {' or '.join(PACKAGES[:2])} and try again")


if __name__ == "__main__":
    main()
