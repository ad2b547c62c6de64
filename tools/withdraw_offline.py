"""Take offline use back from a built site: for when a version that browsers keep turns out to be harmful.

usage: python -m tools.withdraw_offline _site

Deploy the site afterwards. At its next visit each browser gives up what it kept of this site, and of no other; from the
visit after it on it loads the page from the host. The next ordinary build brings offline use back.
"""

import argparse
from pathlib import Path

from tools.embed import OFFLINE, once

WORKER = Path(__file__).with_suffix(".js")


def withdraw(site: Path) -> None:
    """Replace the service worker by one that removes itself and its caches, and have the page register none.

    Raises
    ------
    ValueError
        Where the page registers none as it is.
    """
    page = site / "index.html"
    page.write_text(once(page.read_text(), OFFLINE, ""))
    (site / "sw.js").write_bytes(WORKER.read_bytes())


def main() -> None:
    """Withdraw offline use from the site that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    withdraw(parser.parse_args().site)


if __name__ == "__main__":
    main()
