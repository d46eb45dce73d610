#!/usr/bin/env python3
"""Experts that change sides while a plan runs, on the emulated device: the reference's greedy ids all the same, also late ones and
with streamed prefill; integer experts repacked on the way keep their perplexity.

With --device a GPU runs the plans instead; --tokens N: so many are generated under load, with moves and without, for the test that nothing is lost."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402
from safetensors_file import Tensor, read_tensors, write_tensors  # noqa: E402

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "targets",
                      "emerald-rapids-16-cores-h200.yaml")
POLICY = """\
version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, FORMAT}
  - match: {class: "*"}
    place: {device: cuda:0, REST}
experts:
  on_gpu: 25%
  gpu: {devices: [cuda:0], FORMAT}
  update: {every_tokens: 8}
kv_cache: {dtype: f32, tokens: 1024, sequences: 4, page: 16}
batch: {decode: [1, 4], chunk: CHUNK}
"""
EXACT = "weights: native, activations: f32"
TOKENS = 32
EACH = 160  # tokens of a sequence under load


class Long:
    tokens, device = 640, False



class Moving(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def plan(self, weights, rest=EXACT, chunk="64", more=""):
        name = os.path.join(self.folder.name, "moving")
        with open(name + ".yaml", "w", encoding="utf-8") as f:
            f.write(POLICY.replace("FORMAT", weights).replace("REST", rest).replace("CHUNK", chunk) + more)
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", Setting.model, "--policy", name + ".yaml", "--target",
                               TARGET, "-o", name + ".ktp"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return name + ".ktp"

    def run_json(self, plan, update, *arguments):
        device = () if Long.device else ("--emulate-gpu",)
        done = ktc_run(*arguments, *device, "--update", update, "--json", plan=plan)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check_greedy(self, plan):
        known = Setting.reference_json()["greedy"][:4]
        arguments = [x for k in known for x in ("--prompt", k["prompt"])]
        found = self.run_json(plan, "on", *arguments, "--max-tokens", str(TOKENS), "--temperature", "0")
        for k, f in zip(known, found):
            self.assertEqual(f["ids"], k["greedy_ids"][:len(f["ids"])], k["prompt"])
        moved = found[0]["statistics"]["moved_experts"]
        print(moved)
        self.assertGreater(moved["moves"], 0)
        self.assertGreater(moved["hit_rate"], moved["hit_rate_without"], "the most frequent experts of four prompts")

    def test_greedy_ids(self):
        self.check_greedy(self.plan(EXACT))

    def test_streamed_prefill(self):
        self.check_greedy(self.plan(EXACT, chunk="4, stream_chunk: 64, stream_from: 5"))

    def test_late_experts(self):
        """What is late of all of a token's experts does not depend on where they are."""
        plan = self.plan(EXACT, more="defer: {max_per_token: 2, phases: [decode], scope: all}\n")
        arguments = ("--prompt", "The Linux kernel", "--max-tokens", "64", "--ignore-eos", "--temperature", "0")
        (still,), (moving,) = self.run_json(plan, "off", *arguments), self.run_json(plan, "on", *arguments)
        self.assertNotIn("moved_experts", still["statistics"])
        self.assertGreater(moving["statistics"]["moved_experts"]["moves"], 0)
        self.assertEqual(moving["ids"], still["ids"])

    def test_loses_nothing_under_load(self):
        """Four sequences at a time; what is generated is the same with and without moves."""
        plan = self.plan(EXACT)
        words = [k["prompt"] for k in Setting.reference_json()["greedy"]]
        prompts = [f"{words[i % len(words)]} {i // len(words) or ''}".strip() for i in range(max(4, -(-Long.tokens // EACH)))]
        arguments = [x for p in prompts for x in ("--prompt", p)] + ["--max-tokens", str(EACH), "--ignore-eos", "--temperature", "0"]
        still, moving = self.run_json(plan, "off", *arguments), self.run_json(plan, "on", *arguments)
        moved = moving[0]["statistics"]["moved_experts"]
        print(sum(len(m["ids"]) for m in moving), "tokens", moved)
        self.assertGreater(moved["moves"], Long.tokens // 100)
        self.assertEqual([len(m["ids"]) for m in moving], [EACH] * len(prompts))
        # a tie of two ids within rounding goes either way, and everything behind it
        same = sum(m["ids"] == s["ids"] for m, s in zip(moving, still))
        self.assertGreaterEqual(same, len(prompts) - 1 - len(prompts) // 20)

    def test_integers_are_repacked(self):
        ids = read_tensors(Setting.reference("reference.safetensors"), ("eval_ids",))["eval_ids"]
        rows = [x for r in range(8) for x in ids.row(r)[:257]]
        source = os.path.join(self.folder.name, "ids.safetensors")
        write_tensors(source, {"ids": Tensor("I32", [8, 257], rows)})
        for weights in ("weights: int8", "weights: int4, group: 32", "weights: fp8", "weights: bf16"):
            plan = self.plan(weights, "weights: bf16")
            (still,), (moving,) = (self.run_json(plan, update, "--perplexity", source + ":ids") for update in ("off", "on"))
            moved = moving["statistics"]["moved_experts"]
            print(weights, still["perplexity"], moving["perplexity"], moved)
            self.assertGreater(moved["moves"], 4)
            # activations are rounded otherwise on the GPU; a matrix that were not its expert's would show
            self.assertLess(abs(moving["perplexity"] / still["perplexity"] - 1), 0.01)


if __name__ == "__main__":
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--tokens", type=int, default=Long.tokens)
    more.add_argument("--device", action="store_true")
    _, rest = more.parse_known_args(namespace=Long)
    sys.argv[1:] = rest
    main(__doc__.split("\n\n", maxsplit=1)[0])
