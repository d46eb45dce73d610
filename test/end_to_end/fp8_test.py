#!/usr/bin/env python3
"""A checkpoint with FP8 blocks beside BF16 tensors: its codes are kept, and they compute what their values compute."""
import array
import bisect
import glob
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402
from safetensors_file import read_tensors  # noqa: E402

POLICIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies")
POLICY = """version: 1
rules:
  - match: {{class: "*"}}
    place: {{device: cpu, {place}}}
kv_cache: {{dtype: f32, tokens: 2048, sequences: 8, page: 16}}
batch: {{decode: [1], chunk: 512}}
"""
BLOCK = 128
FP8 = [(8 + m) * 2.0 ** (e - 10) if e else m * 2.0 ** -9 for e in range(16) for m in range(8)][:127]
BF16 = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in range(65536)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def nearest_code(x):
    at = bisect.bisect_left(FP8, abs(x))
    code = 126 if at > 126 else at if at == 0 or FP8[at] - abs(x) <= abs(x) - FP8[at - 1] else at - 1
    return code | (128 if x < 0 else 0)


def read_demo():
    tensors = {}
    for shard in sorted(glob.glob(os.path.join(Setting.model, "*.safetensors"))):
        with open(shard, "rb") as f:
            data = f.read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, info in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                tensors[name] = (info["dtype"], info["shape"], data[8 + size + begin:8 + size + end])
    return tensors


def write(folder, tensors, config):
    os.makedirs(folder)
    for name in os.listdir(Setting.model):
        if name.endswith(".json") and "index" not in name and name != "config.json":
            shutil.copy(os.path.join(Setting.model, name), folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def to_fp8(shape, data):
    """Codes, scales and the decoded values as BF16."""
    rows, columns = shape
    bits = array.array("H", data)
    across = -(-columns // BLOCK)
    codes, decoded, scales = bytearray(len(bits)), array.array("H", bits), []
    for r0 in range(0, rows, BLOCK):
        for c0 in range(0, columns, BLOCK):
            cells = [r * columns + c for r in range(r0, min(r0 + BLOCK, rows)) for c in range(c0, min(c0 + BLOCK, columns))]
            scale = f32(max(abs(BF16[bits[i]]) for i in cells) / 448 * 1.01)
            scales.append(scale)
            for i in cells:
                codes[i] = nearest_code(BF16[bits[i]] / scale)
                value = FP8[codes[i] & 127] * (-1 if codes[i] & 128 else 1)
                decoded[i] = bf16_bits(f32(value * scale))
    return bytes(codes), ([-(-rows // BLOCK), across], struct.pack(f"<{len(scales)}f", *scales)), decoded.tobytes()


class Fp8(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def compile(self, model, policy, plan):
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", model, "--policy", policy, "-o", self.path(plan)],
                              capture_output=True, text=True, check=False, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)

    def policy(self, place):
        with open(self.path("policy.yaml"), "w", encoding="utf-8") as f:
            f.write(POLICY.format(place=place))
        return self.path("policy.yaml")

    def report(self, plan):
        with open(self.path(plan + "/report.json"), encoding="utf-8") as f:
            return json.load(f)

    def logits(self, plan):
        done = ktc_run("--logits", self.path("logits.safetensors"), "--ids", Setting.reference("reference.safetensors") + ":input_ids",
                       plan=self.path(plan))
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_tensors(self.path("logits.safetensors"))["logits"]

    def test_codes_are_kept_and_compute_what_their_values_do(self):
        source = read_demo()
        with open(os.path.join(Setting.model, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        fp8, plain = {}, {}
        for name, (dtype, shape, data) in source.items():
            if not (".layers.1." in name and "_proj.weight" in name):  # attention and experts of one layer
                fp8[name] = plain[name] = (dtype, shape, data)
                continue
            codes, scales, decoded = to_fp8(shape, data)
            fp8[name] = ("F8_E4M3", shape, codes)
            fp8[name + "_scale_inv"] = ("F32", *scales)
            plain[name] = ("BF16", shape, decoded)
        quantised = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
        write(self.path("fp8"), fp8, {**config, "quantization_config": quantised})
        write(self.path("plain"), plain, config)
        exact = os.path.join(POLICIES, "exact.yaml")  # f32 activations take the values, rounded to bf16
        self.compile(self.path("fp8"), exact, "fp8.ktp")
        self.compile(self.path("plain"), exact, "plain.ktp")
        with open(self.path("fp8.ktp/cpu.weights"), "rb") as a, open(self.path("plain.ktp/cpu.weights"), "rb") as b:
            self.assertTrue(a.read() == b.read(), "the packed weights differ")
        self.assertIn("rounds the weights of 2 modules to bf16", " ".join(self.report("fp8.ktp")["notes"]))

        self.compile(self.path("fp8"), self.policy("weights: native"), "kept.ktp")
        report = self.report("kept.ktp")
        self.assertEqual((report["quality"], report["notes"]), ([], []), "nothing is rounded")
        dump = subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "dump", self.path("kept.ktp")], capture_output=True,
                              text=True, check=True).stdout
        for name in ("self_attn", "mlp.experts"):
            self.assertRegex(dump, rf"model\.layers\.1\.{name}\S* .*fp8")
            self.assertNotRegex(dump, rf"model\.layers\.2\.{name}\S* .*fp8")
        subprocess.run([os.path.join(Setting.bin, "ktc-plan"), "verify", "--weights", self.path("kept.ktp")], check=True,
                       capture_output=True)
        self.compile(self.path("fp8"), self.policy("weights: f32"), "decoded.ktp")
        kept, decoded = self.logits("kept.ktp"), self.logits("decoded.ktp")
        square = span = count = 0.0
        for r in range(kept.shape[0]):
            for t in range(kept.shape[1]):
                row = decoded.row(r, t)
                square += sum((a - b) ** 2 for a, b in zip(kept.row(r, t), row))
                span += max(row) - min(row)
                count += len(row)
        error = math.sqrt(square / count) / (span / (kept.shape[0] * kept.shape[1]))
        print("root mean square of the logits' differences over their range:", error)
        # the left operands of one layer's products are rounded to bf16: 2^-9 / sqrt(3) of each product, and nothing else
        self.assertLess(error, 2 ** -9 / math.sqrt(3))
        self.assertGreater(error, 0)

        self.compile(self.path("fp8"), os.path.join(POLICIES, "cpu-int8.yaml"), "int8.ktp")
        self.assertLess(max(q["worst_error"] for q in self.report("int8.ktp")["quality"]), 0.01)
        done = ktc_run("--prompt", "The Linux kernel", "--max-tokens", "4", "--json", plan=self.path("int8.ktp"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_from_bf16_it_costs_little(self):
        self.compile(Setting.model, self.policy("weights: fp8"), "fp8.ktp")
        report = self.report("fp8.ktp")
        self.assertEqual({q["type"] for q in report["quality"]}, {"fp8/128"})
        for q in report["quality"]:  # at most 2^-4 of a weight, 2^-4 / sqrt(12) were it even
            self.assertLess(q["worst_error"], 0.03, q["weight"])
            self.assertLess(q["bits_per_weight"], 8.3 * 1.05)
        done = ktc_run("--perplexity", Setting.reference("reference.safetensors") + ":eval_ids", "--json", plan=self.path("fp8.ktp"))
        self.assertEqual(done.returncode, 0, done.stderr)
        found, exact = json.loads(done.stdout)["perplexity"], Setting.reference_json()["perplexity"]["defer_0"]
        print("perplexity at fp8:", found, "exact:", exact)
        self.assertLess(found, exact * 1.005)


if __name__ == "__main__":
    main(__doc__)
