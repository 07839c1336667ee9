"""Sum of the results in pytest's JUnit files, printed as one line: `N passed, N failed`.

The exit status is 1 if a test failed or none passed.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
for path in map(Path, sys.argv[1:]):
    # If no file matches, the shell passes the pattern itself. S314: pytest has just written these files.
    for suite in ElementTree.parse(path).iter("testsuite") if path.exists() else ():  # noqa: S314
        for key in sums:
            sums[key] += int(suite.get(key, "0"))
failed = sums["failures"] + sums["errors"]
passed = sums["tests"] - failed - sums["skipped"]
print(f"{passed} passed, {failed} failed" + (f", {sums['skipped']} skipped" if sums["skipped"] else ""))
sys.exit(failed > 0 or passed == 0)
