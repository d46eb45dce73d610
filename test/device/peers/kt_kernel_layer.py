#!/usr/bin/env python3
"""Layers of experts by kt-kernel's CPU extension (AMXInt8_MOE, AMXInt4_MOE, AMXBF16_MOE), on the shapes of ktc-bench experts.

Needs the extension for this Python in PEERS/kt_kernel (build_peers.sh) and numpy, not torch. The engine decides by
`tokens > 4 * experts / top_k` between its AVX-512 and its AMX kernels, which in a model whose tokens spread evenly means "more
than 4 tokens per expert". An object here has as many experts as the largest case uses, so the same rule holds for the cases.
"""

import glob
import importlib.util
import sys
import time

import numpy as np

import common

CLASSES = {"int8": "AMXInt8_MOE", "int4": "AMXInt4_MOE", "bf16": "AMXBF16_MOE"}
BYTES = {"int8": 1, "int4": 0.5, "bf16": 2}
DISTINCT = 4  # experts with weights of their own; the others hold copies


def load_extension(folder):
    found = sorted(glob.glob(f"{folder}/kt_kernel/_kt_kernel_ext_*.cpython-{sys.version_info[0]}{sys.version_info[1]}-*.so"))
    if not found:
        sys.exit(f"{folder}/kt_kernel: no extension for this Python; run build_peers.sh")
    spec = importlib.util.spec_from_file_location("kt_kernel_ext", found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Layers:
    """At least `gib` GiB of layers with `experts` experts each, and the cases on them."""

    def __init__(self, kt, cpu, options, form, experts, most_tokens):
        self.cpu, self.options, self.form, self.experts = cpu, options, form, experts
        shape = (options.intermediate, options.hidden)
        rng = np.random.default_rng(1)
        distinct = [[common.random_matrix(rng, form, *s) for _ in range(DISTINCT)] for s in (shape, shape, shape[::-1])]
        source = [np.stack([common.to_bf16(m) for m in matrices])[np.arange(experts) % DISTINCT] for matrices in distinct]
        self.gate, self.up, self.down = ([matrices[e % DISTINCT] for e in range(experts)] for matrices in distinct)
        layer_bytes = 3 * experts * shape[0] * shape[1] * BYTES[form]
        self.objects = []
        mapping = np.arange(experts, dtype=np.int64)
        for index in range(max(1, int(np.ceil(options.gib * 2**30 / layer_bytes)))):
            config = kt.moe.MOEConfig(experts, options.top_k, options.hidden, options.intermediate, 0)
            config.layer_idx = index
            config.max_len = most_tokens
            config.pool = cpu.backend_
            if form == "bf16":  # takes a pointer per expert, others one per matrix
                config.gate_projs, config.up_projs, config.down_projs = (
                    [[matrix.ctypes.data for matrix in matrices]] for matrices in source)
            else:
                config.gate_proj, config.up_proj, config.down_proj = (matrices.ctypes.data for matrices in source)
            moe = getattr(kt.moe, CLASSES[form])(config)
            cpu.submit(moe.load_weights_task(mapping.ctypes.data))
            cpu.sync()
            self.objects.append(moe)
        self.bytes = len(self.objects) * layer_bytes

    def case(self, per_expert):
        routing = common.Routing(per_expert, self.options)
        x = common.to_bf16(np.random.default_rng(2).standard_normal((routing.tokens, self.options.hidden), np.float32))
        out = np.zeros_like(x)
        count = np.array([routing.tokens], np.int64)
        weights = routing.weights()
        windows = [np.ascontiguousarray(routing.ids() + first, np.int64)
                   for first in range(0, self.experts - routing.active + 1, routing.active)]
        state = {"next": 0}

        def submit():
            moe = self.objects[state["next"] % len(self.objects)]
            ids = windows[state["next"] // len(self.objects) % len(windows)]
            state["next"] += 1
            self.cpu.submit(moe.forward_task(count.ctypes.data, routing.top_k, ids.ctypes.data, weights.ctypes.data,
                                             x.ctypes.data, out.ctypes.data, False))

        def run():
            submit()
            self.cpu.sync()

        run()
        error = 0.0
        for token in {0, routing.tokens - 1}:
            expected = common.reference(common.from_bf16(x[token]), windows[0][token], weights[token], self.gate, self.up, self.down)
            error = max(error, common.relative_error(common.from_bf16(out[token]), expected))
        common.accept("kt-kernel", self.form, per_expert, error)

        # Several layers are handed over before one is waited for, as many as take CASE_SECONDS: the cheapest way it offers.
        def measure():
            for _ in range(2):  # the first may have to wake the workers
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                if seconds >= common.LONG_SECONDS:
                    return seconds
            many = max(1, int(np.ceil(common.CASE_SECONDS / seconds)))
            start = time.perf_counter()
            for _ in range(many):
                submit()
            self.cpu.sync()
            return (time.perf_counter() - start) / many

        fields = {"peer": "kt-kernel", "variant": f"{self.options.threads} threads", "format": self.form,
                  "tokens_per_expert": per_expert, "error": error}
        return fields, measure


def main():
    options = common.arguments(__doc__.splitlines()[0])
    kt = load_extension(options.peers)
    pool = kt.WorkerPoolConfig()
    pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [options.threads]
    cpu = kt.CPUInfer(pool)
    routings = [common.Routing(m, options) for m in options.tokens]
    experts, most_tokens = max(r.active for r in routings), max(r.tokens for r in routings)
    cases, gib = [], {}
    for form in options.format:
        layers = Layers(kt, cpu, options, form, experts, most_tokens)
        gib[form] = round(layers.bytes / 2**30, 2)
        cases += [layers.case(m) for m in options.tokens]
    common.rounds(options, cases, peer="kt-kernel", cpu_variant=kt.__cpu_variant__, gib=gib)


main()
