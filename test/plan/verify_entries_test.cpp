// Entries and buffers.
#include "test/plan/verify_case.h"

namespace ktc::test {
namespace {

using planfb::BufferRole;
using planfb::PlanT;
using planfb::Symbol;

planfb::EntryT& extend(PlanT& plan) {
  return entry(plan, "extend[4]");
}

KTC_BROKEN_PLANS(
    PlanVerifyEntries,
    {
        {"name", [](PlanT& p) { p.entries[1]->name = ""; }, "entries[1] \"\": name: found nothing, expected a name"},
        {"twice", [](PlanT& p) { p.entries[1]->name = "extend[4]"; },
         "entries[1] \"extend[4]\": name: found it twice, expected every name once"},
        {"kind", [](PlanT& p) { p.entries[1]->kind = static_cast<planfb::EntryKind>(5); },
         "entries[1] \"decode[1]\": kind: found 5, expected extend, decode or sample"},
        {"order", [](PlanT& p) { std::swap(p.entries[1], p.entries[2]); },
         "entries[2] \"decode[1]\": max_tokens: found 1, expected more than the 2 of \"decode[2]\": buckets ascend"},
        {"no_extend", [](PlanT& p) { p.entries.erase(p.entries.begin()); },
         "entries: of kind extend: found none, expected at least 1"},
        {"no_decode", [](PlanT& p) { p.entries.erase(p.entries.begin() + 1, p.entries.begin() + 3); },
         "entries: of kind decode: found none, expected at least 1"},
        {"none", [](PlanT& p) { p.entries.clear(); }, "entries: of kind extend: found none, expected at least 1"},
        {"no_rows", [](PlanT& p) { extend(p).max_rows = 0; },
         "entry \"extend[4]\": bounds: found 4 tokens, 0 rows, 2 sequences, expected at least 1 of each"},
        {"more_rows", [](PlanT& p) { extend(p).max_rows = 5; },
         "entry \"extend[4]\": bounds: found 4 tokens, 5 rows, 2 sequences, expected at most as many rows as tokens"},
        {"unequal_decode", [](PlanT& p) { entry(p, "decode[2]").max_sequences = 1; },
         "entry \"decode[2]\": bounds: found 2 tokens, 2 rows, 1 sequences, expected as many of each in a decode "
         "entry"},
        {"no_steps", [](PlanT& p) { extend(p).steps.clear(); },
         "entry \"extend[4]\": steps: found none, expected at least 1"},
    });

KTC_BROKEN_PLANS(
    PlanVerifyBuffers,
    {
        {"name", [](PlanT& p) { buffer(extend(p), "x").name = ""; },
         "entry \"extend[4]\": buffers[4] \"\": name: found nothing, expected a name"},
        {"twice", [](PlanT& p) { buffer(extend(p), "h").name = "x"; },
         "entry \"extend[4]\": buffers[5] \"x\": name: found it twice, expected every name once"},
        {"device", [](PlanT& p) { buffer(extend(p), "x").device = 1; },
         "entry \"extend[4]\": buffers[4] \"x\": device: found 1, expected an index in devices of 1 items"},
        {"role", [](PlanT& p) { buffer(extend(p), "x").role = static_cast<BufferRole>(8); },
         "entry \"extend[4]\": buffers[4] \"x\": role: found 8, expected a BufferRole"},
        {"symbol", [](PlanT& p) { buffer(extend(p), "x").symbol = static_cast<Symbol>(5); },
         "entry \"extend[4]\": buffers[4] \"x\": symbol: found 5, expected a Symbol"},
        {"format", [](PlanT& p) { buffer(extend(p), "x").format = 44; },
         "entry \"extend[4]\": buffers[4] \"x\": format: found 44, expected one of f32, bf16, int8, i32"},
        {"workspace_role", [](PlanT& p) { buffer(extend(p), "x").symbol = Symbol::workspace; },
         "entry \"extend[4]\": buffers[4] \"x\": symbol: found workspace, expected workspace for role workspace, and "
         "for no "
         "other"},
        {"ids", [](PlanT& p) { buffer(extend(p), "ids").columns = 2; },
         "entry \"extend[4]\": buffers[0] \"ids\": type of role ids: found i32 [tokens, 2], expected i32 [tokens, 1]"},
        {"positions", [](PlanT& p) { buffer(extend(p), "positions").format = 0; },
         "entry \"extend[4]\": buffers[1] \"positions\": type of role positions: found f32 [tokens, 1], expected i32 "
         "[tokens, "
         "1]"},
        {"output_rows", [](PlanT& p) { buffer(extend(p), "output_rows").symbol = Symbol::tokens; },
         "entry \"extend[4]\": buffers[2] \"output_rows\": type of role output_rows: found i32 [tokens, 1], expected "
         "i32 [rows, "
         "1]"},
        {"logits", [](PlanT& p) { buffer(extend(p), "logits").columns = 7; },
         "entry \"extend[4]\": buffers[3] \"logits\": type of role logits: found f32 [rows, 7], expected f32 [rows, "
         "8]"},
        {"next_ids", [](PlanT& p) { buffer(entry(p, "sample[2]"), "next_ids").format = 0; },
         "entry \"sample[2]\": buffers[1] \"next_ids\": type of role next_ids: found f32 [rows, 1], expected i32 "
         "[rows, 1]"},
        {"columns", [](PlanT& p) { buffer(extend(p), "x").columns = 0; },
         "entry \"extend[4]\": buffers[4] \"x\": columns: found 0, expected at least 1"},
        {"row_bytes", [](PlanT& p) { buffer(extend(p), "x").columns = 17; },
         "entry \"extend[4]\": buffers[4] \"x\": row_bytes: found 64, expected a multiple of 64 that holds 17 columns "
         "of f32"},
        {"row_bytes_overflow", [](PlanT& p) { buffer(extend(p), "x").columns = 1ull << 61; },
         "entry \"extend[4]\": buffers[4] \"x\": row_bytes: found 64, expected a multiple of 64 that holds "
         "2305843009213693952 "
         "columns of f32"},
        {"stride", [](PlanT& p) { buffer(extend(p), "x").row_bytes = 68; },
         "entry \"extend[4]\": buffers[4] \"x\": row_bytes: found 68, expected a multiple of 64 that holds 16 columns "
         "of f32"},
        {"i32_stride", [](PlanT& p) { buffer(extend(p), "ids").row_bytes = 6; },
         "entry \"extend[4]\": buffers[0] \"ids\": row_bytes: found 6, expected a multiple of 4 that holds 1 columns "
         "of i32"},
        {"bytes", [](PlanT& p) { buffer(extend(p), "x").bytes = 255; },
         "entry \"extend[4]\": buffers[4] \"x\": bytes: found 255, expected 4 rows of 64 bytes"},
        {"bytes_overflow", [](PlanT& p) { buffer(extend(p), "x").row_bytes = 1ull << 63; },
         "entry \"extend[4]\": buffers[4] \"x\": bytes: found 256, expected 4 rows of 9223372036854775808 bytes"},
        {"no_scratch", [](PlanT& p) { buffer(extend(p), "scratch").bytes = 0; },
         "entry \"extend[4]\": buffers[15] \"scratch\": bytes: found 0, expected at least 1"},
        {"offset", [](PlanT& p) { buffer(extend(p), "x").offset += 32; },
         "entry \"extend[4]\": buffers[4] \"x\": offset: found 352, expected a multiple of 64"},
        {"arena", [](PlanT& p) { buffer(extend(p), "scratch").offset += 64; },
         "entry \"extend[4]\": buffers[15] \"scratch\": range in the arena: found [3584, 4224), expected inside the "
         "4160 bytes "
         "of \"cpu\""},
        {"arena_overflow", [](PlanT& p) { buffer(extend(p), "x").offset = ~63ull; },
         "entry \"extend[4]\": buffers[4] \"x\": range in the arena: found [18446744073709551552, more than 2^64), "
         "expected "
         "inside the 4160 bytes of \"cpu\""},
        {"no_ids", [](PlanT& p) { buffer(extend(p), "ids").role = BufferRole::value; },
         "entry \"extend[4]\": buffers of role ids: found 0, expected 1 in entries of kind extend"},
        {"two_positions", [](PlanT& p) { buffer(extend(p), "ids").role = BufferRole::positions; },
         "entry \"extend[4]\": buffers of role positions: found 2 on \"cpu\", expected 1 on a device"},
        {"ids_as_deferred", [](PlanT& p) { buffer(extend(p), "ids").role = BufferRole::deferred; },
         "entry \"extend[4]\": buffers of role ids: found 0, expected 1 in entries of kind extend"},
        {"next_ids_in_decode",
         [](PlanT& p) { buffer(entry(p, "decode[2]"), "output_rows").role = BufferRole::next_ids; },
         "entry \"decode[2]\": buffers of role output_rows: found 0, expected 1 in entries of kind decode"},
        {"two_next_ids",
         [](PlanT& p) {
           planfb::EntryT& sample = entry(p, "sample[2]");
           sample.buffers.push_back(std::make_unique<planfb::BufferT>(*sample.buffers[1]));
           sample.buffers.back()->name = "more";
         },
         "entry \"sample[2]\": buffers of role next_ids: found 2, expected 1 in entries of kind sample"},
    });

}  // namespace
}  // namespace ktc::test
