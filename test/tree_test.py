#!/usr/bin/env python3
"""House rules of the tree: files of at most 600 lines, no tabs, no trailing space, no big files, no stray paths."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".td", ".py", ".cmake", ".def", ".fbs", "CMakeLists.txt", ".sh")
MAX_LINES = 600
MAX_BYTES = 300 * 1024  # elsewhere than in data folders
DATA = ("models/demo/", "test/golden/", "LICENSE", "test/text/fixtures/")


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [p for p in out.decode().split("\0") if p and os.path.exists(os.path.join(ROOT, p))]


def violations():
    for path in tracked():
        full = os.path.join(ROOT, path)
        if path.startswith(DATA):
            continue
        if os.path.getsize(full) > MAX_BYTES:
            yield f"{path}: {os.path.getsize(full)} bytes, at most {MAX_BYTES}"
        if not path.endswith(SOURCES):
            continue
        with open(full, encoding="utf-8") as f:
            lines = f.read().split("\n")
        if len(lines) > MAX_LINES + 1:
            yield f"{path}: {len(lines) - 1} lines, at most {MAX_LINES}: find a seam"
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                yield f"{path}:{number}: trailing space"
            if "\t" in line:
                yield f"{path}:{number}: tab"
            if line.startswith(("<<<<<<<", ">>>>>>>")):
                yield f"{path}:{number}: conflict mark"


def main():
    found = list(violations())
    print("\n".join(found) if found else "the tree is in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
