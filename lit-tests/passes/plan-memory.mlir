// RUN: ktc-opt %s --split-input-file --kt-plan-memory --kt-verify-lowered --mlir-print-local-scope | FileCheck %s
// Twice is as once.
// RUN: ktc-opt %S/../Inputs/mla.mlir --kt-pipeline="%exact chunk=8" > %t.once
// RUN: ktc-opt %t.once --kt-plan-memory | diff %t.once -
// RUN: ktc-opt %S/../Inputs/gqa.mlir --kt-pipeline="%exact chunk=8" --remarks-filter-analyse="kt-plan-memory" --remark-format=emitRemark 2>&1 | FileCheck %s --check-prefix=COUNTS
// COUNTS: remark: [Analysis] Arena | Category:kt-plan-memory | Remark=extend[8], bytes={{[0-9]+}}, bytes without reuse={{[0-9]+}}
// COUNTS: remark: [Analysis] Counts | Category:kt-plan-memory | buffers={{[0-9]+}}, in place=6

// Two devices: an arena each, an argument on both that read it, GPU buffers at 256, the account of the hand-off.
// RUN: ktc-opt %S/../Inputs/moe.mlir --kt-pipeline="chunk=8 decode=2 policy=%S/../Inputs/late.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --mlir-print-local-scope | FileCheck %s --check-prefix=HYBRID
// HYBRID: #kt.account<"cpu" "records" "hand-off" = {{[1-9][0-9]*}}>
// HYBRID-SAME: #kt.account<"cuda:0" "step-block" "inputs" = {{[1-9][0-9]*}}>
// HYBRID-SAME: kt.devices = [#kt.device<"cpu", arena = {{[1-9][0-9]*}}>, #kt.device<"cuda:0", arena = {{[1-9][0-9]*}}>]
// HYBRID: kt.entry @"decode[2]" decode {{.*}} buffers [#kt.buffer<name = "ids", device = "cuda:0", role = ids, {{[^>]*}}>, #kt.buffer<name = "positions", device = "cuda:0", {{[^>]*}}>, #kt.buffer<name = "output_rows", device = "cuda:0", {{[^>]*}}>, #kt.buffer<name = "deferred", device = "cpu", role = deferred, {{[^>]*}}>, #kt.buffer<name = "deferred#2", device = "cuda:0", role = deferred, {{[^>]*}}>
// HYBRID-SAME: #kt.buffer<name = "l0.experts.submit.x", device = "cpu", role = value,
// HYBRID-SAME: #kt.buffer<name = "l0.experts.await", device = "cuda:0", role = value,
// HYBRID-SAME: graphs [#kt.graph<"decode[2].cuda:0" on "cuda:0">]
// RUN: not ktc-opt %S/../Inputs/moe.mlir --kt-specialise-entries --kt-place="policy=%S/../Inputs/hybrid.yaml target=%source/placement/targets/two-socket-ddr5-382gb-rtx4090.yaml" --kt-split-experts --kt-plan-memory 2>&1 | FileCheck %s --check-prefix=APART
// APART: 'kt.experts' op has an operand on another device; run kt-insert-transfers first

// Two values and the rows are the most that lives at once: 128 + 128 + 64 bytes. Without reuse it would be 576.
// CHECK-LABEL: module @reuse
// CHECK-SAME: kt.account = [#kt.account<"cpu" "weights" "Embedding" = 1024>, #kt.account<"cpu" "weights" "Norm" = 64>, #kt.account<"cpu" "arena" "activations" = 320>], kt.devices = [#kt.device<"cpu", arena = 320>]
// Inputs first, then values in the order of the steps. Logits lie at 0, where nothing else is live at the end.
// CHECK: kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> buffers [
// CHECK-SAME: #kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = [[IDS:[0-9]+]], bytes = 8>,
// CHECK-SAME: #kt.buffer<name = "positions", device = "cpu", role = positions, {{[^>]*}}>,
// CHECK-SAME: #kt.buffer<name = "output_rows", device = "cpu", role = output_rows, dim = rows, {{[^>]*}}>,
// CHECK-SAME: #kt.buffer<name = "e", device = "cpu", role = value, dim = tokens, format = "f32", columns = 8, row_bytes = 64, {{[^>]*}}, bytes = 128>,
// CHECK-SAME: #kt.buffer<name = "n.select_rows", device = "cpu", role = value, dim = rows, format = "f32", columns = 8, row_bytes = 64, {{[^>]*}}, bytes = 128>,
// CHECK-SAME: #kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>] {
// CHECK: kt.embed {{.*}} {in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<3[0, 8]>],
// CHECK: kt.select_rows {{.*}} {in_views = [#kt.view<3[0, 8]>, #kt.view<2[0, 1]>], out_views = [#kt.view<4[0, 8]>],
// The norm works in place: its operand dies there.
// CHECK: kt.norm {{.*}} {in_views = [#kt.view<4[0, 8]>], out_views = [#kt.view<4[0, 8]>],
// CHECK: kt.lm_head {{.*}} {in_views = [#kt.view<4[0, 8]>], out_views = [#kt.view<5[0, 16]>],
// What sample reads lies where decode left it.
// CHECK: kt.entry @s sample {{.*}} buffers [#kt.buffer<name = "logits", device = "cpu", role = logits, dim = rows, format = "f32", columns = 16, row_bytes = 64, offset = 0, bytes = 128>, #kt.buffer<name = "next_ids", device = "cpu", role = next_ids, dim = rows, format = "i32", columns = 1, row_bytes = 4, offset = 128, bytes = 8>]
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module @reuse {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @n [1, 1, 8] bf16 from [#kt.piece<slot = "n", rows = 1>] on "cpu" as "f32" packed "row_major"
  kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place} : !i -> !h
    %x = kt.select_rows %h, %rows of <Norm "n"> {place = #place} : !h, !r -> !s
    %y = kt.norm rms %x @n eps 1.0e-06 of <Norm "n"> {place = #place} : !s
    %l = kt.lm_head %y @w of <Head "h"> {place = #place} : !s -> !l
    kt.return %l : !l
  }
  kt.entry @s sample bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%l: !l):
    %n = kt.sample %l of <Head "h"> {place = #place} : !l -> !r
    kt.return %n : !r
  }
}

// -----

// Results of one product are columns of one buffer; a norm of some columns works on those; a sum does not overwrite an
// operand that is read later, nor one that it reads twice.
// CHECK-LABEL: module @columns
// CHECK: kt.linear {{.*}} {in_views = [#kt.view<3[0, 8]>], out_views = [#kt.view<4[0, 4]>, #kt.view<4[4, 12]>],
// CHECK: kt.norm rms {{.*}} @n4 {{.*}} {in_views = [#kt.view<4[0, 4]>], out_views = [#kt.view<4[0, 4]>],
// CHECK: kt.linear {{.*}} @up {{.*}} {in_views = [#kt.view<4[0, 4]>], out_views = [#kt.view<5[0, 8]>],
// CHECK: kt.add {{.*}} {in_views = [#kt.view<3[0, 8]>, #kt.view<5[0, 8]>], out_views = [#kt.view<6[0, 8]>],
// CHECK: kt.add {{.*}} {in_views = [#kt.view<6[0, 8]>, #kt.view<6[0, 8]>], out_views = [#kt.view<7[0, 8]>],
// CHECK: kt.add {{.*}} {in_views = [#kt.view<3[0, 8]>, #kt.view<7[0, 8]>], out_views = [#kt.view<3[0, 8]>],
#place = #kt.place<"cpu", weights = "bf16", activations = "f32">
!i = tensor<?x1xi32, #kt.dim<tokens>>
!h = tensor<?x8xf32, #kt.dim<tokens>>
!f = tensor<?x4xf32, #kt.dim<tokens>>
!t = tensor<?x12xf32, #kt.dim<tokens>>
!r = tensor<?x1xi32, #kt.dim<rows>>
!s = tensor<?x8xf32, #kt.dim<rows>>
!l = tensor<?x16xf32, #kt.dim<rows>>
module @columns {
  kt.weight @w [1, 16, 8] bf16 from [#kt.piece<slot = "w", rows = 16>] on "cpu" as "bf16" packed "row_major"
  kt.weight @n4 [1, 1, 4] bf16 from [#kt.piece<slot = "n4", rows = 1>] on "cpu" as "f32" packed "row_major"
  kt.weight @up [1, 8, 4] bf16 from [#kt.piece<slot = "up", rows = 8>] on "cpu" as "bf16" packed "row_major"
  kt.entry @d decode bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%ids: !i, %positions: !i, %rows: !r):
    %h = kt.embed %ids @w of <Embedding "e"> {place = #place} : !i -> !h
    %a, %b = kt.linear %h @w of <Attention "a"> {place = #place} : !h -> !f, !t
    %n = kt.norm rms %a @n4 eps 1.0e-06 of <Attention "a"> {place = #place} : !f
    %u = kt.linear %n @up of <Attention "a"> {place = #place} : !f -> !h
    %s0 = kt.add %h, %u of <Attention "a"> {place = #place} : !h, !h -> !h
    %s1 = kt.add %s0, %s0 of <Attention "a"> {place = #place} : !h, !h -> !h
    %s2 = kt.add %h, %s1 of <Attention "a"> {place = #place} : !h, !h -> !h
    %x = kt.select_rows %s2, %rows of <Norm "n"> {place = #place} : !h, !r -> !s
    %l = kt.lm_head %x @w of <Head "h"> {place = #place} : !s -> !l
    kt.return %l : !l
  }
}
