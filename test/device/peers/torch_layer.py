#!/usr/bin/env python3
"""Layers of experts by torch's CPU operators (oneDNN), one matrix product per expert, on the shapes of ktc-bench experts.

bf16: a plain linear, or oneDNN's on packed weights. int8: oneDNN's quantised linear on packed weights (one scale of activations
per call), or an integer product with a scale per row. int4: the group-64 product with bf16 activations. Where there are two ways,
both are timed once at the start, and from then on each case is measured with its faster one.
"""

import numpy as np
import torch
import torch.nn.functional as F

import common

DISTINCT = 4
GROUP = 64


class Linear:
    """bf16 in, bf16 out."""

    def __init__(self, weight):
        self.weight = torch.from_numpy(weight).to(torch.bfloat16)

    def __call__(self, x):
        return F.linear(x, self.weight)


class PackedLinear:
    def __init__(self, weight):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.from_numpy(weight).to(torch.bfloat16))

    def __call__(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


def int8_rows(weight):
    weight = torch.from_numpy(weight)
    scales = weight.abs().amax(1) / 127
    return (weight / scales[:, None]).round().to(torch.int8), scales


class QuantisedLinear:
    most_error = 0.2  # one scale for all activations of a call: the more tokens, the coarser

    def __init__(self, weight):
        codes, self.scales = int8_rows(weight)
        self.zeros = torch.zeros(len(codes), dtype=torch.int32)
        self.weight = torch.ops.onednn.qlinear_prepack(codes, None)

    def __call__(self, x):
        scale = float(x.abs().amax()) / 127
        codes = (x.float() * (1 / scale)).round_().add_(128).to(torch.uint8)
        return torch.ops.onednn.qlinear_pointwise(codes, scale, 128, self.weight, self.scales, self.zeros, None, 1.0, 0,
                                                  torch.bfloat16, "none", [], "")


class IntegerProduct:
    def __init__(self, weight):
        codes, self.scales = int8_rows(weight)
        self.weight = codes.t()

    def __call__(self, x):
        x = x.float()
        scales = x.abs().amax(1, keepdim=True) / 127
        return (torch._int_mm((x / scales).round_().to(torch.int8), self.weight).float() * scales * self.scales).to(torch.bfloat16)


class Int4Groups:
    def __init__(self, weight):
        weight = torch.from_numpy(weight)
        groups = weight.view(len(weight), -1, GROUP)
        scales = (groups.abs().amax(2) / 7).to(torch.bfloat16)
        codes = (groups / scales.float()[:, :, None]).round().clamp(-8, 7).view_as(weight).to(torch.int32) + 8
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self.scales = torch.stack([scales.t(), torch.zeros_like(scales.t())], 2).contiguous()

    def __call__(self, x):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, GROUP, self.scales)


WAYS = {"bf16": {"linear": Linear, "packed": PackedLinear}, "int8": {"qlinear": QuantisedLinear, "int_mm": IntegerProduct},
        "int4": {"int4pack": Int4Groups}}
BYTES = {"int8": 1, "int4": 0.5, "bf16": 2}


def clone(way):
    """Another copy of the weights, in memory of its own."""
    other = object.__new__(type(way))
    other.__dict__.update(way.__dict__)
    transposed = not way.weight.is_mkldnn and not way.weight.is_contiguous()
    other.weight = way.weight.t().clone().t() if transposed else way.weight.clone()
    return other


class Pool:
    """Experts of one format made one way: gate and up stacked, down. At least `gib` GiB."""

    def __init__(self, options, form, make, sources, least):
        made = [(make(np.concatenate([gate, up])), make(down)) for gate, up, down in sources]
        expert_bytes = 3 * options.hidden * options.intermediate * BYTES[form]
        count = max(least, int(np.ceil(options.gib * 2**30 / expert_bytes)))
        self.experts = made + [tuple(clone(way) for way in made[e % DISTINCT]) for e in range(len(made), count)]
        self.gib = count * expert_bytes / 2**30


class Case:
    def __init__(self, options, form, per_expert, sources):
        self.form, self.routing, self.sources = form, common.Routing(per_expert, options), sources
        r = self.routing
        x = np.random.default_rng(2).standard_normal((r.tokens, options.hidden), np.float32)
        self.x = torch.from_numpy(x).to(torch.bfloat16)
        self.weights = r.weights()
        ids = r.ids()
        self.rows = [torch.from_numpy(np.nonzero((ids == e).any(1))[0]) for e in range(r.active)]
        self.row_weights = [torch.from_numpy(self.weights[rows.numpy(), e % r.top_k])[:, None] for e, rows in enumerate(self.rows)]
        self.next = 0

    def run(self, pool):
        r = self.routing
        if self.next + r.active > len(pool.experts):
            self.next = 0
        out = torch.zeros(self.x.shape, dtype=torch.float32)
        for e in range(r.active):
            gate_up, down = pool.experts[self.next + e]
            x = self.x if r.groups == 1 else self.x.index_select(0, self.rows[e])
            gate, up = gate_up(x).chunk(2, 1)
            y = down(F.silu(gate) * up).float() * self.row_weights[e]
            if r.groups == 1:
                out += y
            else:
                out.index_add_(0, self.rows[e], y)
        self.next += r.active
        return out

    def check(self, pool):
        self.next = 0
        out = self.run(pool).numpy()
        error, ids = 0.0, self.routing.ids()
        gate, up, down = ([self.sources[e % DISTINCT][m] for e in range(self.routing.active)] for m in range(3))
        for token in {0, self.routing.tokens - 1}:
            expected = common.reference(self.x[token].float().numpy(), ids[token], self.weights[token], gate, up, down)
            error = max(error, common.relative_error(out[token], expected))
        return error


def main():
    options = common.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    cases, gib = [], {}
    for form in options.format:
        rng = np.random.default_rng(1)
        shape = (options.intermediate, options.hidden)
        sources = [tuple(common.random_matrix(rng, form, *s) for s in (shape, shape, shape[::-1])) for _ in range(DISTINCT)]
        forms = [Case(options, form, m, sources) for m in options.tokens]
        least = max(c.routing.active for c in forms)
        for name, make in WAYS[form].items():
            pool = Pool(options, form, make, sources, least)
            gib[f"{form} {name}"] = round(pool.gib, 2)
            for case in forms:
                error = case.check(pool)
                common.accept("torch", form, case.routing.per_expert, error, getattr(make, "most_error", None))
                fields = {"peer": "torch", "variant": name, "format": form, "tokens_per_expert": case.routing.per_expert,
                          "error": error}
                cases.append((fields, lambda case=case, pool=pool: common.time_layers(lambda: case.run(pool))))

    def trial():
        best = {}
        for case in cases:
            key = case[0]["format"], case[0]["tokens_per_expert"]
            seconds = case[1]()
            if key not in best or seconds < best[key][0]:
                best[key] = seconds, case
        cases[:] = [case for _, case in best.values()]

    common.rounds(options, cases, trial, peer="torch", version=torch.__version__, gib=gib)


main()
