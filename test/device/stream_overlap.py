#!/usr/bin/env python3
"""How much of a streamed prefill's copies lay beside computation: stream_overlap.py TRACE, a file of ktc-run --trace.

Per step with copies, and for all: milliseconds of the step, of copies to the device, of computation there, and the share of the
shorter of the two that ran while the other did."""
import json
import sys


def spans(events, row):
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == row)


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def within(intervals, begin, end):
    return [(max(a, begin), min(b, end)) for a, b in intervals if a < end and b > begin]


def both(left, right):
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        events = json.load(f)
    rows = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    slices = [e for e in events if e["ph"] == "X"]
    found = False
    for name, row in rows.items():
        if not name.startswith("copies to "):
            continue
        copies, gpu = spans(slices, row), spans(slices, rows[name[len("copies to "):]])
        for step in (e for e in slices if e["tid"] == rows["steps"]):
            begin, end = step["ts"], step["ts"] + step["dur"]
            c, g = within(copies, begin, end), within(gpu, begin, end)
            if not c:
                continue
            found = True
            shorter = min(length(c), length(g))
            print(f"{step['name']} {name[10:]}: {(end - begin) / 1e3:.1f} ms, copies {length(c) / 1e3:.1f} ms, "
                  f"computation {length(g) / 1e3:.1f} ms, overlap {both(c, g) / shorter * 100 if shorter else 0:.0f} %")
    if not found:
        sys.exit("no step of this trace streams experts")


if __name__ == "__main__":
    main()
