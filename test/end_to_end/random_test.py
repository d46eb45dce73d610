#!/usr/bin/env python3
"""Plans of made-up weights: from config.json alone, with the shapes of the checkpoint, equal for equal seeds, shared by layers."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, main  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TARGET = os.path.join(ROOT, "placement", "targets", "two-socket-ddr5-382gb-rtx4090.yaml")


def policy(name):
    return os.path.join(ROOT, "placement", "policies", name + ".yaml")


class RandomWeights(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = os.path.join(self.folder, "model")
        os.mkdir(self.model)
        shutil.copy(os.path.join(Setting.model, "config.json"), self.model)

    def tool(self, name, *arguments, good=True):
        done = subprocess.run([os.path.join(Setting.bin, name), *arguments], capture_output=True, text=True, timeout=280, check=False)
        self.assertEqual(done.returncode == 0, good, done.stderr)
        return done.stdout if good else done.stderr

    def compile(self, out, policy_name, *flags, model=None):
        plan = os.path.join(self.folder, out + ".ktp")
        self.tool("ktc", "compile", model or self.model, "--policy", policy(policy_name), "--target", TARGET, "-o", plan, *flags)
        self.tool("ktc-plan", "verify", "--weights", plan)
        return plan

    def weights(self, plan):
        """name -> everything but where the bytes come from."""
        lines = re.findall(r'^weight "([^"]+)" (.*? on "[^"]+") (\S+)=', self.tool("ktc-plan", "dump", plan), re.M)
        return {name: kind for name, kind, _ in lines}, {source for _, _, source in lines}

    def test_shapes_are_those_of_the_checkpoint(self):
        for name in ("cpu-int4", "hybrid-int4"):
            real, sources = self.weights(self.compile("real", name, model=Setting.model))
            self.assertEqual(sources, {"file"})
            made, sources = self.weights(self.compile("made", name, "--random-weights"))
            self.assertEqual(sources, {"random"})
            self.assertEqual(made, real)
            self.assertFalse([f for f in os.listdir(os.path.join(self.folder, "made.ktp")) if f.endswith(".weights")])

    def test_layers_share_bytes(self):
        plan = self.compile("shared", "cpu-int4", "--random-weights", "--alias-layers", "2")
        text = self.tool("ktc-plan", "dump", plan)
        kinds = {}
        for name, source in re.findall(r'^weight "([^"]+)" .*? on "[^"]+" (random|alias)=', text, re.M):
            kinds.setdefault(re.sub(r"[.]\d+[.]", ".*.", name), []).append(source)
        self.assertTrue(any("alias" in sources for sources in kinds.values()))
        for kind, sources in kinds.items():
            self.assertLessEqual(sources.count("random"), 2, kind)
        whole = self.tool("ktc-plan", "sizes", self.compile("whole", "cpu-int4", "--random-weights"))
        size = lambda report: int(re.search(r'"cpu" weights by format: .*\((\d+) bytes\)', report).group(1))
        self.assertLess(size(self.tool("ktc-plan", "sizes", plan)), size(whole))

    def test_equal_seeds_choose_equal_tokens(self):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(Setting.model, name), self.model)

        def tokens(out, *flags):
            plan = self.compile(out, "cpu-int4", *flags)
            return self.tool("ktc-run", plan, "--prompt", "The river", "--max-tokens", "12", "--ignore-eos", "--temperature", "0", "--json")
        chosen = lambda text: json.loads(text)["text"]
        first = chosen(tokens("a", "--random-weights=7"))
        self.assertEqual(first, chosen(tokens("b", "--random-weights=7", "--alias-layers", "100")))
        self.assertNotEqual(first, chosen(tokens("c", "--random-weights=8")))

    def test_sharing_needs_made_up_weights(self):
        error = self.tool("ktc", "compile", self.model, "--policy", policy("cpu"), "--alias-layers", "2", "--dry-run", good=False)
        self.assertIn("--alias-layers: found no --random-weights beside it", error)

    def test_a_model_of_any_size(self):
        """The schedule of 671B parameters, from twenty numbers."""
        with open(os.path.join(self.model, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        if config["model_type"] != "deepseek_v3":
            self.skipTest("shapes of DeepSeek-V3")
        config.update(hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, n_routed_experts=256, num_hidden_layers=61,
                      first_k_dense_replace=3, num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, vocab_size=129280,
                      max_position_embeddings=4096)
        with open(os.path.join(self.model, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        plan = self.compile("large", "cpu-int4", "--random-weights", "--alias-layers", "4")
        sizes = self.tool("ktc-plan", "sizes", plan)
        weights = int(re.search(r'"cpu" weights by format: .*\((\d+) bytes\)', sizes).group(1))
        experts = 4 * 256 * 3 * 7168 * 2048 * 17 // 32
        self.assertGreater(weights, experts)
        self.assertLess(weights, experts + 8 * 10**9)


if __name__ == "__main__":
    main(__doc__)
