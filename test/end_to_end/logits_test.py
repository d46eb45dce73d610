#!/usr/bin/env python3
"""Exact mode gives the reference's largest logits, whole last rows and log-sum-exp within 1e-3 of a row's logit range."""
import math
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run_json, main  # noqa: E402
from safetensors_file import read_tensors  # noqa: E402

BOUND = 1e-3


def log_sum_exp(row):
    best = max(row)
    return best + math.log(math.fsum(math.exp(x - best) for x in row))


class Logits(unittest.TestCase):
    def test_against_reference(self):
        path = Setting.reference("reference.safetensors")
        names = ("input_ids", "top_ids.defer_0", "top_values.defer_0", "logsumexp.defer_0", "last_logits.defer_0")
        reference = read_tensors(path, names)
        rows, tokens = reference["input_ids"].shape
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "logits.safetensors")
            (summary,) = ktc_run_json("--logits", out, "--ids", path + ":input_ids")
            logits = read_tensors(out)["logits"]
        self.assertEqual(logits.shape[:2], [rows, tokens])
        self.assertEqual(summary["shape"], logits.shape)
        worst = {"top": 0.0, "logsumexp": 0.0, "last": 0.0}  # each as a share of its row's range
        for r in range(rows):
            for t in range(tokens):
                row = logits.row(r, t)
                span = max(row) - min(row)
                self.assertGreater(span, 1)
                for i, value in zip(reference["top_ids.defer_0"].row(r, t), reference["top_values.defer_0"].row(r, t)):
                    worst["top"] = max(worst["top"], abs(row[i] - value) / span)
                expected = reference["logsumexp.defer_0"].row(r)[t]
                worst["logsumexp"] = max(worst["logsumexp"], abs(log_sum_exp(row) - expected) / span)
            row = logits.row(r, tokens - 1)
            for found, expected in zip(row, reference["last_logits.defer_0"].row(r)):
                worst["last"] = max(worst["last"], abs(found - expected) / (max(row) - min(row)))
        print("largest differences over the row's range:", worst)
        for name, difference in worst.items():
            self.assertLessEqual(difference, BOUND, name)


if __name__ == "__main__":
    main(__doc__)
