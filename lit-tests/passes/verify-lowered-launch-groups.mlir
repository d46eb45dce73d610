// Marks that are none of a launch, made from those of the pass.
// RUN: ktc-opt %S/join-launches.mlir --kt-form-cuda-graphs --kt-join-launches --kt-plan-memory --kt-verify-lowered --mlir-print-local-scope > %t.mlir
// RUN: sed 's/launch_group = 1/launch_group = 0/' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=LONG
// LONG: 'kt.add_norm' op launch_group: found 0 on "add_norm, route, publish, await, add_norm", expected steps of one graph of a decode entry that have one kernel (runtime/formats/launch_groups.h) and hand their values on
// RUN: sed 's/launch_group = 2/launch_group = 0/' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=AGAIN
// AGAIN: 'kt.route' op launch_group: found 0 again, expected its steps one behind the other on one GPU
// RUN: sed '/kt.await.*record 0/s/launch_group = 1 : i64, //' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=ALONE
// ALONE: 'kt.add_norm' op launch_group: found 1 on "add_norm", expected
// RUN: sed '/kt.experts.*cpu_x,/s/{in_views/{launch_group = 7 : i64, in_views/' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=CPU
// CPU: 'kt.entry' op launch_group: found a step of the CPU, expected steps of a GPU
// RUN: sed 's/graphs \[[^]]*\] {/ {/; s/graph = 0 : i64, //' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=ROUTED
// RUN: sed 's/decode bounds/extend bounds/' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=ROUTED
// ROUTED: 'kt.add_norm' op launch_group: found 0 on "add_norm, route, publish", expected steps of one graph of a decode entry
// RUN: sed 's/launch_group = 0/launch_group = -1/' %t.mlir | not ktc-opt --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=NUMBER
// NUMBER: 'kt.add_norm' op launch_group: found -1, expected a number from 0 to 4294967294

// Memory that was planned for steps one by one is none for a group: its router writes logits where the sum in front still reads.
// RUN: not ktc-opt %S/join-launches.mlir --kt-form-cuda-graphs --kt-plan-memory --kt-join-launches --kt-verify-lowered 2>&1 | FileCheck %s --check-prefix=MEMORY
// MEMORY: 'kt.entry' op buffer "g.workspace": shares bytes with "h" while both are live, in step 2
