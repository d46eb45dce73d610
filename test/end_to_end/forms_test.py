#!/usr/bin/env python3
"""One model in every public form gives one plan: rope spellings, packed experts, tensors of an MTP layer.

The forms are rewritten from the checkpoint with the standard library, so the reader under test has no part in making them.
"""
import filecmp
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from end_to_end import Setting, main  # noqa: E402

POLICY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "placement", "policies", "exact.yaml")
BYTES = {"BF16": 2, "F32": 4}


def read_tensors(folder):
    """name -> (dtype, shape, bytes) over all shards."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
            data = f.read()
        for tensor, info in header.items():
            if tensor != "__metadata__":
                begin, end = info["data_offsets"]
                tensors[tensor] = (info["dtype"], info["shape"], data[begin:end])
    return tensors


def write_checkpoint(folder, tensors):
    """One model.safetensors, without an index."""
    for name in os.listdir(folder):
        if ".safetensors" in name:
            os.remove(os.path.join(folder, name))
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


class Forms(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def copy(self):
        """The checkpoint under its own folder name, which the plan states."""
        path = os.path.join(self.folder, f"form{len(os.listdir(self.folder))}", os.path.basename(os.path.normpath(Setting.model)))
        shutil.copytree(Setting.model, path, ignore=shutil.ignore_patterns("reference", "eval.txt"))
        return path

    def compile(self, model):
        plan = model + ".ktp"
        done = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", model, "--policy", POLICY, "-o", plan],
                              capture_output=True, text=True, check=False, timeout=120)
        return done, plan

    def assert_same_plan(self, model, *, files=("plan.ktp", "cpu.weights")):
        done, plan = self.compile(model)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, mismatch, errors = filecmp.cmpfiles(plan, Setting.plan, files, shallow=False)
        self.assertEqual((mismatch, errors), ([], []), done.stderr)
        return done.stderr

    def config(self, model, change):
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        change(config)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)

    # ------------------------------------------------------------------------------------------------------------- rope

    def test_rope_base_at_the_top_level(self):
        model = self.copy()

        def old(config):
            rope = config.pop("rope_parameters")
            config.update(rope_theta=rope["rope_theta"], rope_scaling=None)
        self.config(model, old)
        self.assert_same_plan(model)

    def test_nested_default_rope_is_not_scaled(self):
        model = self.copy()
        self.config(model, lambda c: c["rope_parameters"].update(type=c["rope_parameters"].pop("rope_type")))
        self.assert_same_plan(model)

    def test_contradicting_rope_bases_are_never_silent(self):
        model = self.copy()
        self.config(model, lambda c: c.update(rope_theta=500000.0))
        words = self.assert_same_plan(model)  # the nested value, which the checkpoint was trained with
        self.assertIn("rope_theta", words)
        self.assertIn("rope_parameters", words)

    def test_another_rope_base_gives_another_plan(self):
        model = self.copy()
        self.config(model, lambda c: c["rope_parameters"].update(rope_theta=500000.0))
        done, plan = self.compile(model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(filecmp.cmp(os.path.join(plan, "plan.ktp"), os.path.join(Setting.plan, "plan.ktp"), shallow=False))

    # ---------------------------------------------------------------------------------------------------------- experts

    def packed(self, model):
        """Per-expert matrices gathered into [E, 2I, H] and [E, H, I]."""
        tensors = read_tensors(model)
        packed = {n: t for n, t in tensors.items() if ".experts." not in n}
        layers = sorted({n.split(".experts.")[0] for n in tensors if ".experts." in n})
        self.assertTrue(layers)
        for layer in layers:
            experts = sorted({int(n.split(".experts.")[1].split(".")[0]) for n in tensors if n.startswith(layer + ".experts.")})

            def part(e, name):
                return tensors[f"{layer}.experts.{e}.{name}.weight"]
            dtype, (inner, hidden), _ = part(0, "gate_proj")
            packed[f"{layer}.experts.gate_up_proj"] = (dtype, [len(experts), 2 * inner, hidden],
                                                       b"".join(part(e, n)[2] for e in experts for n in ("gate_proj", "up_proj")))
            packed[f"{layer}.experts.down_proj"] = (dtype, [len(experts), hidden, inner],
                                                    b"".join(part(e, "down_proj")[2] for e in experts))
        return packed

    def test_packed_experts(self):
        model = self.copy()
        write_checkpoint(model, self.packed(model))
        self.assert_same_plan(model)

    def test_packed_experts_with_a_misspelled_name(self):
        model = self.copy()
        tensors = self.packed(model)
        name = next(n for n in tensors if n.endswith("gate_up_proj"))
        tensors[name.replace("gate_up", "gate_upp")] = tensors.pop(name)
        write_checkpoint(model, tensors)
        done, plan = self.compile(model)
        self.assertEqual(done.returncode, 1)
        self.assertIn("gate_upp_proj", done.stderr)
        self.assertFalse(os.path.exists(plan))

    # -------------------------------------------------------------------------------------------------------------- MTP

    def test_tensors_of_an_mtp_layer_are_skipped_and_reported(self):
        model = self.copy()
        tensors = read_tensors(model)
        layers = 1 + max(int(n.split(".")[2]) for n in tensors if n.startswith("model.layers."))
        hidden = tensors["model.norm.weight"][1][0]
        prefix = f"model.mtp_block.layers.{layers}"
        tensors[f"{prefix}.eh_proj.weight"] = ("F32", [hidden, 2 * hidden], bytes(8 * hidden * hidden))
        tensors[f"{prefix}.enorm.weight"] = ("F32", [hidden], bytes(4 * hidden))
        tensors[f"{prefix}.input_layernorm.weight"] = ("F32", [hidden], bytes(4 * hidden))
        write_checkpoint(model, tensors)
        self.config(model, lambda c: c.update(num_nextn_predict_layers=1))
        self.assert_same_plan(model)
        dry = subprocess.run([os.path.join(Setting.bin, "ktc"), "compile", model, "--policy", POLICY, "--dry-run"],
                             capture_output=True, text=True, check=True, timeout=60).stdout
        self.assertRegex(dry, rf"skipped +MTP.*1 layer, 3 tensors, {8 * hidden * hidden + 8 * hidden} bytes")


if __name__ == "__main__":
    main(__doc__)
