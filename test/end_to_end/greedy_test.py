#!/usr/bin/env python3
"""Exact mode continues every reference prompt with the reference's ids, alone and in a batch."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, ktc_run_json, main  # noqa: E402

TOKENS = 32  # what DESIGN promises; later ids may differ after a near-tie
EVAL_TEXT = ("The following options are available for the command, and each of them may be given more than once. "
             "If no file is named, standard input is read until it ends. ")


class Greedy(unittest.TestCase):
    def test_reference_prompts(self):
        reference = Setting.reference_json()["greedy"]
        self.assertEqual(len(reference), 8)
        for case in reference:
            with self.subTest(prompt=case["prompt"]):
                (found,) = ktc_run_json("--prompt", case["prompt"], "--max-tokens", str(TOKENS), "--temperature", "0")
                self.assertEqual(found["prompt_ids"], case["prompt_ids"])
                self.assertEqual(found["ids"], case["greedy_ids"][:TOKENS])
                self.assertEqual(found["finish_reason"], "length")
                self.assertTrue(case["text"].startswith(case["prompt"] + found["text"].rstrip("\ufffd")))
                statistics = found["statistics"]
                for key in ("load_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "peak_memory_bytes",
                            "threads"):
                    self.assertGreater(statistics[key], 0, key)
                self.assertIn(statistics["isa"], ("scalar", "avx2", "avx512", "avx512_vnni", "amx"))

    def test_text_on_standard_output(self):
        case = Setting.reference_json()["greedy"][0]
        done = ktc_run("--prompt", case["prompt"], "--max-tokens", str(TOKENS), "--temperature", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("\n"))
        self.assertGreater(len(done.stdout), TOKENS)
        self.assertTrue(case["text"].startswith(case["prompt"] + done.stdout[:-1].rstrip("\ufffd")))
        self.assertIn("sampling: greedy", done.stderr)
        self.assertIn("stop tokens: ", done.stderr)

    def test_batch_equals_alone(self):
        prompts = [case["prompt"] for case in Setting.reference_json()["greedy"]]
        # lengths from a few to some hundred tokens, so that prompts end in different steps
        prompts = [p + " " + EVAL_TEXT * (i * i // 4) for i, p in enumerate(prompts)]
        for sampling in (["--temperature", "0"],
                         ["--temperature", "0.8", "--top-p", "0.9", "--repetition-penalty", "1.1", "--seed", "7"]):
            flags = ["--max-tokens", "24", *sampling]
            together = ktc_run_json(*[x for p in prompts for x in ("--prompt", p)], *flags)
            self.assertEqual(len(together), len(prompts))
            lengths = {len(t["prompt_ids"]) for t in together}
            self.assertEqual(len(lengths), len(prompts), "lengths should differ")
            for prompt, in_batch in zip(prompts, together):
                (alone,) = ktc_run_json("--prompt", prompt, *flags)
                self.assertEqual(in_batch["prompt_ids"], alone["prompt_ids"])
                self.assertEqual(in_batch["ids"], alone["ids"])
                self.assertEqual(in_batch["text"], alone["text"])

    def test_threads_and_kernels_do_not_matter_to_greedy_ids(self):
        case = Setting.reference_json()["greedy"][1]
        for flags in (["--threads", "1"], ["--threads", "2"], ["--isa", "scalar"]):
            with self.subTest(flags=flags):
                (found,) = ktc_run_json("--prompt", case["prompt"], "--max-tokens", str(TOKENS), "--temperature", "0", *flags)
                self.assertEqual(found["ids"], case["greedy_ids"][:TOKENS])


if __name__ == "__main__":
    main(__doc__)
