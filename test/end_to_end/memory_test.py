#!/usr/bin/env python3
"""Quantising streams: the memory of a compile follows the matrices in flight, not the checkpoint; killed at any point, it resumes
to the same bytes."""
import filecmp
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, main  # noqa: E402

EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 64, 768, 512, 2, 512
THREADS = 2
POLICY = """version: 1
rules:
  - match: {class: RoutedExperts}
    place: {device: cpu, weights: int4, group: 64}
  - match: {class: "*"}
    place: {device: cpu, weights: native}
kv_cache: {dtype: bf16, tokens: 64, sequences: 1, page: 16}
batch: {decode: [1], chunk: 16}
"""


def shapes():
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN]
    yield "lm_head.weight", [VOCABULARY, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [HIDDEN]
        yield at + "post_attention_layernorm.weight", [HIDDEN]
        for name, shape in (("q_proj", [128, HIDDEN]), ("k_proj", [64, HIDDEN]), ("v_proj", [64, HIDDEN]), ("o_proj", [HIDDEN, 128])):
            yield at + f"self_attn.{name}.weight", shape
        yield at + "self_attn.q_norm.weight", [64]
        yield at + "self_attn.k_norm.weight", [64]
        yield at + "mlp.gate.weight", [EXPERTS, HIDDEN]
        for e in range(EXPERTS):
            for name, shape in (("gate_proj", [INTERMEDIATE, HIDDEN]), ("up_proj", [INTERMEDIATE, HIDDEN]), ("down_proj", [HIDDEN, INTERMEDIATE])):
                yield at + f"mlp.experts.{e}.{name}.weight", shape


def write_checkpoint(folder):
    """302 MB of experts in bf16; every tensor another stretch of one random pattern."""
    os.makedirs(folder)
    with open(os.path.join(Setting.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(hidden_size=HIDDEN, moe_intermediate_size=INTERMEDIATE, num_experts=EXPERTS, num_local_experts=EXPERTS, num_experts_per_tok=4,
                  num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=VOCABULARY,
                  tie_word_embeddings=False)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(Setting.model, name), folder)
    header, offset = {}, 0
    for name, shape in shapes():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(1)
    # exponents around 2^-6, any sign and mantissa: finite, and no two rows alike
    pattern = b"".join(struct.pack("<H", draw.getrandbits(1) << 15 | (120 + draw.getrandbits(2)) << 7 | draw.getrandbits(7))
                       for _ in range(100003)) * 9
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i, info in enumerate(header.values()):
            begin, end = info["data_offsets"]
            start = i * 7919 * 2 % 200006
            f.write(pattern[start:start + end - begin])


def anonymous_bytes(pid):
    """Memory of a process that no file backs, or 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            for line in f:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        write_checkpoint(os.path.join(cls.folder, "model"))
        with open(os.path.join(cls.folder, "policy.yaml"), "w", encoding="utf-8") as f:
            f.write(POLICY)

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, *arguments):
        return [os.path.join(Setting.bin, "ktc"), "compile", self.path("model"), "--policy", self.path("policy.yaml"), "--threads",
                str(THREADS), *arguments]

    def peak(self, *arguments):
        running = subprocess.Popen(self.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        peak = 0
        while running.poll() is None:
            peak = max(peak, anonymous_bytes(running.pid))
            time.sleep(0.002)
        errors = running.stderr.read()
        running.stderr.close()
        self.assertEqual(running.returncode, 0, errors)
        return peak

    def test_peak_and_kills(self):
        before = self.peak("--dry-run")  # the compiler and the IR, without a weight
        peak = self.peak("-o", self.path("whole.ktp"))
        # what each thread holds: one packed matrix, rows of the checkpoint in pieces of 8 MiB, tables of one row
        in_flight = THREADS * (INTERMEDIATE * 2 * HIDDEN + (8 << 20))
        print(f"dry run {before / 1e6:.1f} MB, compile {peak / 1e6:.1f} MB, bound of what is in flight {in_flight / 1e6:.1f} MB")
        self.assertLess(peak - before, in_flight + (16 << 20), "16 MiB for the allocator and stacks")
        self.assertLess(peak - before, os.path.getsize(self.path("model/model.safetensors")) / 5, "it holds a part of the checkpoint")

        draw = random.Random()
        delays = [draw.uniform(0.05, 0.8) for _ in range(5)]
        for delay in delays:
            running = subprocess.Popen(self.command("-o", self.path("killed.ktp")), stderr=subprocess.DEVNULL)
            time.sleep(delay)
            running.send_signal(signal.SIGKILL)
            running.wait()
        self.peak("-o", self.path("killed.ktp"))
        names = sorted(os.listdir(self.path("whole.ktp")))
        self.assertEqual(names, sorted(os.listdir(self.path("killed.ktp"))))
        _, mismatch, errors = filecmp.cmpfiles(self.path("whole.ktp"), self.path("killed.ktp"), names, shallow=False)
        self.assertEqual((mismatch, errors), ([], []), f"killed after {delays}")


if __name__ == "__main__":
    main(__doc__)
