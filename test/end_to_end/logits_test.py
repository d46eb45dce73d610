#!/usr/bin/env python3
"""Exact mode gives the reference's largest logits, whole last rows and log-sum-exp within 1e-3 of a row's logit range."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run_json, main  # noqa: E402
from reference_logits import worst_differences  # noqa: E402
from safetensors_file import read_tensors  # noqa: E402

BOUND = 1e-3


class Logits(unittest.TestCase):
    def test_against_reference(self):
        path = Setting.reference("reference.safetensors")
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "logits.safetensors")
            (summary,) = ktc_run_json("--logits", out, "--ids", path + ":input_ids")
            self.assertEqual(summary["shape"], read_tensors(out)["logits"].shape)
            worst, span = worst_differences(out, path, 0)
        self.assertGreater(span, 1)
        print("largest differences over the row's range:", worst)
        for name, difference in worst.items():
            self.assertLessEqual(difference, BOUND, name)


if __name__ == "__main__":
    main(__doc__)
