"""Adds up pytest's JUnit files and prints one line, `N passed, N failed`.

FastRoute 1 if anything failed or nothing passed.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
for path in map(Path, sys.argv[1:]):
    # With no file the shell hands over its pattern. S314: pytest wrote these files, a minute ago.
    for suite in ElementTree.parse(path).iter("testsuite") if path.exists() else ():  # noqa: S314
        for key in sums:
            sums[key] += int(suite.get(key, "0"))
failed = sums["failures"] + sums["errors"]
passed = sums["tests"] - failed - sums["skipped"]
print(f"{passed} passed, {failed} failed" + (f", {sums['skipped']} skipped" if sums["skipped"] else ""))
sys.exit(failed > 0 or passed == 0)
