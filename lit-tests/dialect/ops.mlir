// Every op in its custom form and in its generic form: what is printed parses to the same text.
// RUN: ktc-opt %s | ktc-opt | FileCheck %s
// RUN: ktc-opt %s --mlir-print-op-generic | ktc-opt | FileCheck %s

// CHECK-DAG: #tokens = #kt.dim<tokens>
// CHECK-DAG: #rows = #kt.dim<rows>
// CHECK-DAG: #rope = #kt.rope<half, factor = 1.000000e+00 : f32, inv_freq = [1.00000000e+00, 5.00000000e-01]>
// CHECK-DAG: #place = #kt.place<"cpu", weights = "bf16", activations = "f32">

// CHECK: module attributes {kt.account = [#kt.account<"cpu" "arena" "activations" = 4096>], kt.defer = #kt.defer<max_per_token = 2, decode = true, prefill = false, all = false, line = "p.yaml:3:1">, kt.devices = [#kt.device<"cpu", arena = 4096>]
// CHECK-SAME: kt.model = #kt.model<name = "toy", family = "qwen3_moe", architecture = "Toy", hidden = 8, vocab = 16, layers = 1, max_positions = 64, bos_token = 1, stop_tokens = [2, 3], sampling = {temperature = 5.000000e-01 : f32}>
// CHECK-SAME: kt.phase = #kt.phase<placed>, kt.policy = "version: 1", kt.target = "toy machine"
module attributes {
  kt.phase = #kt.phase<placed>, kt.policy = "version: 1", kt.target = "toy machine",
  kt.model = #kt.model<name = "toy", family = "qwen3_moe", architecture = "Toy", hidden = 8, vocab = 16, layers = 1,
                       max_positions = 64, bos_token = 1, stop_tokens = [2, 3],
                       sampling = {temperature = 0.5 : f32}>,
  kt.defer = #kt.defer<max_per_token = 2, decode = true, prefill = false, all = false, line = "p.yaml:3:1">,
  kt.devices = [#kt.device<"cpu", arena = 4096>], kt.account = [#kt.account<"cpu" "arena" "activations" = 4096>]} {

  // CHECK: kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>]
  kt.weight @embed [1, 16, 8] bf16 from [#kt.piece<slot = "embed", rows = 16>]
  // CHECK: kt.weight @norm [1, 1, 8] f32 from [#kt.piece<slot = "norm", rows = 1>] on "cpu" as "f32" packed "row_major"
  kt.weight @norm [1, 1, 8] f32 from [#kt.piece<slot = "norm", rows = 1>] on "cpu" as "f32" packed "row_major"
  // two projections, one behind the other
  // CHECK: kt.weight @qk [1, 12, 8] f16 from [#kt.piece<slot = "q", rows = 8>, #kt.piece<slot = "k", rows = 4, dst_row = 8>]
  kt.weight @qk [1, 12, 8] f16 from [#kt.piece<slot = "q", rows = 8>, #kt.piece<slot = "k", rows = 4, dst_row = 8>]
  kt.weight @v [1, 4, 8] bf16 from [#kt.piece<slot = "v", rows = 4>]
  kt.weight @bias [1, 1, 4] bf16 from [#kt.piece<slot = "bias", rows = 1>]
  kt.weight @head_norm [1, 1, 4] bf16 from [#kt.piece<slot = "head_norm", rows = 1>]
  kt.weight @o [1, 8, 8] bf16 from [#kt.piece<slot = "o", rows = 8>]
  // kv_b of 2 heads of 4 + 4 rows over a latent of 8, and its split: every head a matrix, W_UK transposed
  kt.weight @kv_b [1, 16, 8] bf16 from [#kt.piece<slot = "kv_b", rows = 16>]
  // CHECK: kt.weight @w_uk [2, 8, 4] bf16 from [#kt.piece<slot = "kv_b", rows = 4, transpose = true, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
  kt.weight @w_uk [2, 8, 4] bf16
      from [#kt.piece<slot = "kv_b", rows = 4, transpose = true, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
  kt.weight @w_uv [2, 4, 8] bf16
      from [#kt.piece<slot = "kv_b", src_row = 4, rows = 4, repeat = 2, repeat_src_row = 8, repeat_dst_batch = 1>]
  // even rows of each head, then odd rows
  // CHECK: kt.weight @permuted [1, 16, 8] bf16 from [#kt.piece<slot = "r", rows = 4, row_step = 2, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>, #kt.piece<slot = "r", rows = 4, src_row = 1, row_step = 2, dst_row = 4, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>]
  kt.weight @permuted [1, 16, 8] bf16 from [
      #kt.piece<slot = "r", rows = 4, row_step = 2, repeat = 2, repeat_src_row = 8, repeat_dst_row = 8>,
      #kt.piece<slot = "r", rows = 4, src_row = 1, row_step = 2, dst_row = 4, repeat = 2, repeat_src_row = 8,
                repeat_dst_row = 8>]
  kt.weight @gate [1, 4, 8] bf16 from [#kt.piece<slot = "gate", rows = 4>]
  kt.weight @gate_bias [1, 1, 4] f32 from [#kt.piece<slot = "gate_bias", rows = 1>]
  kt.weight @gate_up [1, 12, 8] bf16 from [#kt.piece<slot = "gate_up", rows = 12>]
  kt.weight @down [1, 8, 6] bf16 from [#kt.piece<slot = "down", rows = 8>]
  // CHECK: kt.expert_bank @experts experts 4 hidden 8 intermediate 6 bf16 gate_up [#kt.piece<slot = "experts.gate_up", rows = 12>] down [#kt.piece<slot = "experts.down", rows = 8>] on "cpu" as "bf16" packed "row_major"
  kt.expert_bank @experts experts 4 hidden 8 intermediate 6 bf16
      gate_up [#kt.piece<slot = "experts.gate_up", rows = 12>] down [#kt.piece<slot = "experts.down", rows = 8>]
      on "cpu" as "bf16" packed "row_major"
  // some of the layer's experts, and experts that belong on a GPU
  // CHECK: kt.expert_bank @cold experts 3 ids [0, 2, 3] hidden 8 intermediate 6 bf16 gate_up
  kt.expert_bank @cold experts 3 ids [0, 2, 3] hidden 8 intermediate 6 bf16
      gate_up [#kt.piece<slot = "experts.gate_up", rows = 12>] down [#kt.piece<slot = "experts.down", rows = 8>]
  // CHECK: kt.expert_bank @warm {{.*}} packed "panel" group 64 hot [#kt.hot<device = "cuda:0", weights = "int4", activations = "bf16", group = 128, experts = [1, 3], line = "p.yaml:7:11">]
  kt.expert_bank @warm experts 4 hidden 8 intermediate 6 bf16
      gate_up [#kt.piece<slot = "experts.gate_up", rows = 12>] down [#kt.piece<slot = "experts.down", rows = 8>]
      on "cpu" as "int4" packed "panel" group 64
      hot [#kt.hot<device = "cuda:0", weights = "int4", activations = "bf16", group = 128, experts = [1, 3], line = "p.yaml:7:11">]
  // CHECK: kt.table @kv.pages pages [2, 16]
  kt.table @kv.pages pages [2, 16]
  // CHECK: kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>] layers 2 page 4 tokens 64 sequences 2 pages @kv.pages on "cpu" as "f32"
  kt.cache @kv paged parts [#kt.part<"k" heads = 1, width = 4>, #kt.part<"v" heads = 1, width = 4>]
      layers 2 page 4 tokens 64 sequences 2 pages @kv.pages on "cpu" as "f32"
  kt.cache @latent paged parts [#kt.part<"latent" heads = 1, width = 8>, #kt.part<"rope" heads = 1, width = 4>]
      layers 2 page 4 tokens 64 sequences 2 pages @kv.pages

  // CHECK: kt.entry @generic generic {
  // CHECK-NEXT: ^bb0(%ids: tensor<?x1xi32, #tokens>, %positions: tensor<?x1xi32, #tokens>):
  kt.entry @generic generic {
  ^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>):
    // CHECK: kt.embed %ids @embed of <Embedding "embed"> : tensor<?x1xi32, #tokens> -> tensor<?x8xf32, #tokens>
    %h = kt.embed %ids @embed of <Embedding "embed"> : tensor<?x1xi32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.norm rms %{{.*}} @norm eps 9.99999997E-7 of <Norm "norm" layer 0> : tensor<?x8xf32, #tokens>
    %n = kt.norm rms %h @norm eps 1.0e-06 of <Norm "norm" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: %[[QK:.*]]:2 = kt.linear %{{.*}} @qk of <Attention "attn" layer 0> : tensor<?x8xf32, #tokens> -> tensor<?x8xf32, #tokens>, tensor<?x4xf32, #tokens>
    %q, %k = kt.linear %n @qk of <Attention "attn" layer 0> : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>
    // CHECK: kt.linear %{{.*}} @v bias @bias of <Attention "attn" layer 0> {place = #place} : tensor<?x8xf32, #tokens> -> tensor<?x4xf32, #tokens>
    %v = kt.linear %n @v bias @bias of <Attention "attn" layer 0> {place = #kt.place<"cpu", weights = "bf16", activations = "f32">} : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x4xf32, #kt.dim<tokens>>
    // CHECK: kt.gqa %[[QK]]#0, %[[QK]]#1, %{{.*}}, %positions cache @kv[0] order 0 q_norm @head_norm k_norm @head_norm of <Attention "attn" layer 0> {head_dim = 4 : i64, heads = 2 : i64, kv_heads = 1 : i64, norm_eps = 9.99999997E-7 : f32, rope = #rope, scale = 5.000000e-01 : f32}
    %a = kt.gqa %q, %k, %v, %positions cache @kv[0] order 0 q_norm @head_norm k_norm @head_norm of <Attention "attn" layer 0>
      {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 4 : i64, scale = 0.5 : f32, norm_eps = 1.0e-06 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>}
      : (tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>) -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.mla %{{.*}}, %{{.*}}, %{{.*}}, %positions cache @latent[0] order 1 kv_b @kv_b of
    %q2 = kt.linear %n @permuted of <Attention "mla" layer 0> : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x16xf32, #kt.dim<tokens>>
    %m = kt.mla %q2, %n, %v, %positions cache @latent[0] order 1 kv_b @kv_b of <Attention "mla" layer 0>
      {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<interleaved, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>}
      : (tensor<?x16xf32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>) -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.mla %{{.*}}, %{{.*}}, %{{.*}}, %positions cache @latent[1] order 2 w_uk @w_uk w_uv @w_uv of
    %m2 = kt.mla %q2, %n, %v, %positions cache @latent[1] order 2 w_uk @w_uk w_uv @w_uv of <Attention "mla" layer 1>
      {heads = 2 : i64, nope_dim = 4 : i64, rope_dim = 4 : i64, v_dim = 4 : i64, latent_dim = 8 : i64, scale = 0.5 : f32, rope = #kt.rope<half, factor = 1.0 : f32, inv_freq = [1.0, 0.5]>}
      : (tensor<?x16xf32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x4xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>) -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.add %{{.*}}, %{{.*}}, %{{.*}} of <Attention "attn" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x8xf32, #tokens>, tensor<?x8xf32, #tokens> -> tensor<?x8xf32, #tokens>
    %s = kt.add %a, %m, %m2 of <Attention "attn" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.route softmax_topk %{{.*}} @gate of <Router "gate" layer 0> {experts = 4 : i64, groups = 1 : i64, normalise = true, scale = 1.000000e+00 : f32, top_k = 2 : i64, topk_groups = 1 : i64} : tensor<?x8xf32, #tokens> -> tensor<?x2xi32, #tokens>, tensor<?x2xf32, #tokens>
    %e, %w = kt.route softmax_topk %s @gate of <Router "gate" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    // CHECK: kt.route sigmoid_group %{{.*}} @gate bias @gate_bias of
    %e2, %w2 = kt.route sigmoid_group %s @gate bias @gate_bias of <Router "gate" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = false, scale = 2.5 : f32, groups = 2 : i64, topk_groups = 1 : i64} : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    // CHECK: kt.experts swiglu %{{.*}}, %{{.*}}, %{{.*}} @experts of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x2xi32, #tokens>, tensor<?x2xf32, #tokens>
    %x = kt.experts swiglu %s, %e, %w @experts of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    // CHECK: kt.mlp swiglu %{{.*}} gate_up @gate_up down @down of <SharedExperts "shared" layer 0> : tensor<?x8xf32, #tokens>
    %d = kt.mlp swiglu %x gate_up @gate_up down @down of <SharedExperts "shared" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>
    %l = kt.lm_head %d @embed of <Head "lm_head"> : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x16xf32, #kt.dim<tokens>>
    %next = kt.sample %l of <Head "lm_head"> : tensor<?x16xf32, #kt.dim<tokens>> -> tensor<?x1xi32, #kt.dim<tokens>>
    kt.return %next : tensor<?x1xi32, #kt.dim<tokens>>
  }

  // CHECK: kt.entry @"decode[2]" decode bounds <tokens = 2, rows = 2, sequences = 2>
  // CHECK-SAME: buffers [#kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 8>] {
  // CHECK-NEXT: ^bb0(%ids: tensor<?x1xi32, #tokens>, %positions: tensor<?x1xi32, #tokens>, %rows: tensor<?x1xi32, #rows>):
  kt.entry @"decode[2]" decode bounds <tokens = 2, rows = 2, sequences = 2>
      buffers [#kt.buffer<name = "ids", device = "cpu", role = ids, dim = tokens, format = "i32", columns = 1, row_bytes = 4, offset = 0, bytes = 8>] {
  ^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>, %rows: tensor<?x1xi32, #kt.dim<rows>>):
    // CHECK: kt.embed %ids @embed of <Embedding "embed"> {in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<1[0, 8]>], workspace = 3 : i64}
    %h = kt.embed %ids @embed of <Embedding "embed"> {in_views = [#kt.view<0[0, 1]>], out_views = [#kt.view<1[0, 8]>], workspace = 3 : i64} : tensor<?x1xi32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.select_rows %{{.*}}, %rows of <Norm "norm"> : tensor<?x8xf32, #tokens>, tensor<?x1xi32, #rows> -> tensor<?x8xf32, #rows>
    %r = kt.select_rows %h, %rows of <Norm "norm"> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x8xf32, #kt.dim<rows>>
    // CHECK: kt.lm_head %{{.*}} @embed of <Head "lm_head"> : tensor<?x8xf32, #rows> -> tensor<?x16xf32, #rows>
    %l = kt.lm_head %r @embed of <Head "lm_head"> : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
    // CHECK: kt.return %{{.*}} : tensor<?x16xf32, #rows>
    kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
  }

  // A GPU's half of a decode entry: what is handed to the CPU and back, what is copied, late experts, graphs.
  // CHECK: kt.entry @"decode[4]" decode bounds <tokens = 4, rows = 4, sequences = 4> graphs [#kt.graph<"decode[4].cuda:0" on "cuda:0">] {
  // CHECK-NEXT: ^bb0(%ids: {{.*}}, %positions: {{.*}}, %rows: {{.*}}, %deferred: tensor<?x1xi32, #tokens>):
  kt.entry @"decode[4]" decode bounds <tokens = 4, rows = 4, sequences = 4> graphs [#kt.graph<"decode[4].cuda:0" on "cuda:0">] {
  ^bb0(%ids: tensor<?x1xi32, #kt.dim<tokens>>, %positions: tensor<?x1xi32, #kt.dim<tokens>>, %rows: tensor<?x1xi32, #kt.dim<rows>>, %deferred: tensor<?x1xi32, #kt.dim<tokens>>):
    // CHECK: kt.embed {{.*}} {graph = 0 : i64, place = #place1}
    %h = kt.embed %ids @embed of <Embedding "embed"> {graph = 0 : i64, place = #kt.place<"cuda:0", weights = "bf16", activations = "bf16">} : tensor<?x1xi32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: %[[SUM:.*]], %[[OUT:.*]] = kt.add_norm rms %{{.*}}, %{{.*}} @norm eps 9.99999997E-7 of <Norm "norm" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x8xf32, #tokens> -> tensor<?x8xf32, #tokens>
    %s, %n = kt.add_norm rms %h, %h @norm eps 1.0e-06 of <Norm "norm" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x8xf32, #kt.dim<tokens>>
    %e, %w = kt.route softmax_topk %n @gate of <Router "gate" layer 0> {experts = 4 : i64, top_k = 2 : i64, normalise = true, scale = 1.0 : f32, groups = 1 : i64, topk_groups = 1 : i64} : tensor<?x8xf32, #kt.dim<tokens>> -> tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    // CHECK: %[[X:.*]], %[[I:.*]], %[[V:.*]] = kt.submit %[[OUT]], %{{.*}}, %{{.*}} record 0 as "bf16" slots [0, -1, 1, 2] of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x2xi32, #tokens>, tensor<?x2xf32, #tokens>
    %x, %i, %v = kt.submit %n, %e, %w record 0 as "bf16" slots [0, -1, 1, 2] of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>
    // CHECK: %[[Z:.*]] = kt.experts swiglu %[[X]], %[[I]], %[[V]] deferred %deferred @cold slots [0, -1, 1, 2] late <count = 2, part = in_time> of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x2xi32, #tokens>, tensor<?x2xf32, #tokens>, tensor<?x1xi32, #tokens>
    %z = kt.experts swiglu %x, %i, %v deferred %deferred @cold slots [0, -1, 1, 2] late <count = 2, part = in_time> of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>
    // CHECK: kt.experts {{.*}} late <count = 2, part = late, among_all = true> of
    %y = kt.experts swiglu %x, %i, %v deferred %deferred @cold slots [0, -1, 1, 2] late <count = 2, part = late, among_all = true> of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>
    // CHECK: kt.experts {{.*}} late <count = 2, part = in_time> stream of
    %t = kt.experts swiglu %x, %i, %v deferred %deferred @cold slots [0, -1, 1, 2] late <count = 2, part = in_time> stream of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x2xi32, #kt.dim<tokens>>, tensor<?x2xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<tokens>>
    // CHECK: kt.await %[[Z]] record 0 as "bf16" skip_empty of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #tokens>
    %a = kt.await %z record 0 as "bf16" skip_empty of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>
    // CHECK: kt.transfer %{{.*}}, %rows from "cpu" to "cuda:0" of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #tokens>, tensor<?x1xi32, #rows> -> tensor<?x8xf32, #tokens>, tensor<?x1xi32, #rows>
    %b, %c = kt.transfer %y, %rows from "cpu" to "cuda:0" of <RoutedExperts "experts" layer 0> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<rows>>
    %r = kt.select_rows %a, %c of <Norm "norm"> : tensor<?x8xf32, #kt.dim<tokens>>, tensor<?x1xi32, #kt.dim<rows>> -> tensor<?x8xf32, #kt.dim<rows>>
    %l = kt.lm_head %r @embed of <Head "lm_head"> : tensor<?x8xf32, #kt.dim<rows>> -> tensor<?x16xf32, #kt.dim<rows>>
    kt.return %l : tensor<?x16xf32, #kt.dim<rows>>
  }

  // CHECK: kt.entry @"sample[2]" sample bounds <tokens = 2, rows = 2, sequences = 2> {
  kt.entry @"sample[2]" sample bounds <tokens = 2, rows = 2, sequences = 2> {
  ^bb0(%logits: tensor<?x16xf32, #kt.dim<rows>>):
    // CHECK: kt.sample %logits of <Head "lm_head"> : tensor<?x16xf32, #rows> -> tensor<?x1xi32, #rows>
    %next = kt.sample %logits of <Head "lm_head"> : tensor<?x16xf32, #kt.dim<rows>> -> tensor<?x1xi32, #kt.dim<rows>>
    kt.return %next : tensor<?x1xi32, #kt.dim<rows>>
  }
}
