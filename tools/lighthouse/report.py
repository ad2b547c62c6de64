"""Ask Lighthouse about the built page, served as GitHub Pages serves it, and say what it finds.

The scores of speed depend on the machine and on what else it does meanwhile; the others do not.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tools import browser
from tools.serve import StaticServer

MOUNT = "/batch-size-optimizer/"
PROGRAM = Path(__file__).resolve().parent / "node_modules/lighthouse/cli/index.js"
# The least score of each category, of 100.
WANTED = {"performance": 95, "accessibility": 100, "best-practices": 100, "seo": 100}
MEASURES = ("first-contentful-paint", "largest-contentful-paint", "total-blocking-time", "cumulative-layout-shift")
PHONE, DESK = "phone", "desk"
# Of so many reports the one in the middle counts, as Lighthouse's own advice on variability has it.
REPORTS = 3


def ask(address: str, device: str) -> dict[str, Any]:
    """Return Lighthouse's report on an address."""
    command = ["node", str(PROGRAM), address, "--quiet", "--output=json", f"--only-categories={','.join(WANTED)}"]
    command += [f"--chrome-flags=--headless=new {' '.join(browser.ARGUMENTS)}"]
    command += ["--preset=desktop"] if device == DESK else []
    environment = os.environ | {"CHROME_PATH": browser.executable() or ""}
    answer = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    report: dict[str, Any] = json.loads(answer)
    return report


def middle(address: str, device: str) -> dict[str, Any]:
    """Return of several reports on an address the one with the middle score of speed."""
    reports = [ask(address, device) for _ in range(REPORTS)]
    return sorted(reports, key=lambda report: report["categories"]["performance"]["score"])[REPORTS // 2]


def show(report: dict[str, Any], device: str) -> bool:
    """Print the scores, and what takes points away; return whether every category has what is wanted."""
    audits = report["audits"]
    good = True
    for name, wanted in WANTED.items():
        category = report["categories"][name]
        score = round(100 * category["score"])
        good = good and score >= wanted
        print(f"{device:6} {name:15} {score:4} of {wanted} wanted")
        for reference in category["auditRefs"]:
            audit = audits[reference["id"]]
            if reference["weight"] and audit["score"] is not None and audit["score"] < 1:
                print(f"         {audit['title']}: {audit.get('displayValue', 'no')}")
    print(f"{device:6} " + ", ".join(f"{audits[name]['title']} {audits[name]['displayValue']}" for name in MEASURES))
    return good


def main() -> None:
    """Report on the site in a folder, as a phone and as a desk sees it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    with StaticServer(parser.parse_args().folder, MOUNT) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        good = [show(middle(server.url, device), device) for device in (PHONE, DESK)]
        server.shutdown()
    if not all(good):
        sys.exit("Less than wanted.")


if __name__ == "__main__":
    main()
