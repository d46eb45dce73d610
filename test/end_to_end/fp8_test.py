#!/usr/bin/env python3
"""A checkpoint with FP8 blocks beside BF16 tensors compiles to the bytes of its own values written as BF16."""
import array
import bisect
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, ktc_run, main  # noqa: E402

POLICIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies")
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
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", self.path(model), "--policy",
                               os.path.join(POLICIES, policy), "-o", self.path(plan)], capture_output=True, text=True,
                              check=False, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_fp8_is_its_values(self):
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
        self.compile("fp8", "cpu.yaml", "fp8.ktp")
        self.compile("plain", "cpu.yaml", "plain.ktp")
        with open(self.path("fp8.ktp/cpu.weights"), "rb") as a, open(self.path("plain.ktp/cpu.weights"), "rb") as b:
            self.assertTrue(a.read() == b.read(), "the packed weights differ")
        with open(self.path("fp8.ktp/report.json"), encoding="utf-8") as f:
            self.assertIn("rounds the weights of 2 modules to bf16", " ".join(json.load(f)["notes"]))

        self.compile("fp8", "cpu-int8.yaml", "int8.ktp")
        with open(self.path("int8.ktp/report.json"), encoding="utf-8") as f:
            self.assertLess(max(q["worst_error"] for q in json.load(f)["quality"]), 0.01)
        done = ktc_run("--prompt", "The Linux kernel", "--max-tokens", "4", "--json", plan=self.path("int8.ktp"))
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main(__doc__)
