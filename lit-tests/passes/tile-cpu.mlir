// A target with tile units has thresholds by format; rows of gate and up are paired, everything else is plain.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-pipeline="to=optimised policy=%S/../Inputs/int4.yaml target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml chunk=8" -o %t.optimised
// RUN: ktc-opt %t.optimised --kt-tile-cpu=target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml --kt-verify-tiled --mlir-print-local-scope | FileCheck %s --check-prefixes=CHECK,AMX
// Twice is as once.
// RUN: ktc-opt %t.optimised --kt-tile-cpu=target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml > %t.once
// RUN: ktc-opt %t.once --kt-tile-cpu=target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml | diff %t.once -
// Without AMX, or without thresholds, vector kernels serve every number of rows.
// RUN: ktc-opt %t.optimised --kt-tile-cpu=target=%source/placement/targets/laptop-8-cores-32gb.yaml --mlir-print-local-scope | FileCheck %s --check-prefixes=CHECK,VECTOR
// RUN: ktc-opt %t.optimised --kt-tile-cpu="target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml thresholds=false" --mlir-print-local-scope | FileCheck %s --check-prefixes=CHECK,VECTOR
// Granules are part of the result, so they are the plan's and not the machine's.
// RUN: ktc-opt %t.optimised --kt-tile-cpu="target=%source/placement/targets/laptop-8-cores-32gb.yaml x-granule=128 h-granule=0" --mlir-print-local-scope | FileCheck %s --check-prefix=GRANULE
// RUN: not ktc-opt %t.optimised --kt-tile-cpu=target=%S/missing.yaml 2>&1 | FileCheck %s --check-prefix=NOFILE
// The whole pipeline: scratch for codes, scales and tiles is in the plan's account.
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-pipeline="policy=%S/../Inputs/int4.yaml target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml chunk=32" --mlir-print-local-scope | FileCheck %s --check-prefix=LATENT
// bf16 is panels as well, which have no scales; a tied head reads the rows of the embedding. In exact mode all is rows.
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-pipeline="to=tiled policy=%source/placement/policies/cpu.yaml target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml chunk=8" --mlir-print-local-scope | FileCheck %s --check-prefix=BF16
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-pipeline="to=tiled policy=%source/placement/policies/exact.yaml target=%source/placement/targets/emerald-rapids-16-cores-h200.yaml chunk=8" --mlir-print-local-scope | FileCheck %s --check-prefix=ROWS

// The tied embedding stays in rows, the head gets panels.
// CHECK: kt.weight @embed.weight {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// CHECK: kt.weight @"embed.weight-int8" {{.*}} on "cpu" as "int8" packed "panel"{{$}}
// CHECK: kt.weight @l0.attn.q.k.v {{.*}} on "cpu" as "int4" packed "panel"{{$}}
// CHECK: kt.weight @l0.gate.weight {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// CHECK: kt.expert_bank @l0.experts {{.*}} on "cpu" as "int4" packed "panel_paired" group 32
// AMX: kt.linear {{.*}} @l0.attn.q.k.v {{.*}} tile = #kt.tile<x = 64, rows = 11>}
// AMX: kt.experts {{.*}} tile = #kt.tile<x = 64, h = 64, rows = 13>}
// AMX: kt.lm_head {{.*}} tile = #kt.tile<x = 64, rows = 9>}
// VECTOR: kt.linear {{.*}} @l0.attn.q.k.v {{.*}} tile = #kt.tile<x = 64>}
// VECTOR: kt.experts {{.*}} tile = #kt.tile<x = 64, h = 64>}
// GRANULE: kt.experts {{.*}} tile = #kt.tile<x = 128>}
// NOFILE: error: {{.*}}missing.yaml

// LATENT: kt.phase = #kt.phase<lowered>
// Per-head matrices of latent attention keep the checkpoint's precision, and their op computes in f32.
// LATENT: kt.weight @l0.attn.kv_b.w_uk {{.*}} as "bf16" packed "row_major"
// LATENT: kt.weight @l0.attn.kv_b.w_uv {{.*}} as "bf16" packed "row_major"
// LATENT: kt.linear {{.*}} activations = "int8">, tile = {{.*}} workspace = {{[0-9]+}} : i64}
// LATENT: kt.mla {{.*}} place = #kt.place<"cpu", weights = "bf16", activations = "f32">

// BF16: kt.weight @embed.weight {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// BF16-NOT: @"embed.weight-
// BF16: kt.weight @l0.attn.q.k.v {{.*}} on "cpu" as "bf16" packed "panel"{{$}}
// BF16: kt.weight @l0.gate.weight {{.*}} on "cpu" as "bf16" packed "row_major"{{$}}
// BF16: kt.expert_bank @l0.experts {{.*}} on "cpu" as "bf16" packed "panel_paired"{{$}}
// BF16: kt.embed {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// BF16: kt.linear {{.*}} @l0.attn.q.k.v {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "bf16">, tile = #kt.tile<x = 0, rows = 4>}
// BF16: kt.gqa {{.*}} place = #kt.place<"cpu", weights = "bf16", activations = "f32">
// BF16: kt.experts {{.*}} tile = #kt.tile<x = 0, rows = 4>}
// BF16: kt.lm_head {{.*}} @embed.weight of {{.*}} {place = #kt.place<"cpu", weights = "bf16", activations = "f32">}
// ROWS-NOT: "panel
// ROWS-NOT: tile =
