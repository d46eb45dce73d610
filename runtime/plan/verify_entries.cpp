// Entries as a whole, and their buffers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <unordered_set>

#include "runtime/formats/halves.h"
#include "runtime/plan/verify.h"

namespace ktc::plan {

bool is_cut(const planfb::EntryT& entry) {
  return std::any_of(entry.buffers.begin(), entry.buffers.end(), [](const auto& buffer) { return is_half(buffer->symbol); });
}

std::uint64_t bound_of(const planfb::EntryT& entry, planfb::Symbol symbol) {
  switch (symbol) {
    case planfb::Symbol::rows: return entry.max_rows;
    case planfb::Symbol::first_half: return first_half_bound(entry.max_tokens);
    case planfb::Symbol::second_half: return second_half_bound(entry.max_tokens);
    case planfb::Symbol::tokens:
    case planfb::Symbol::workspace: break;
  }
  return entry.max_tokens;
}

}  // namespace ktc::plan

namespace ktc::plan::detail {

using namespace planfb;

std::string EntrySite::place() const {
  return "entry " + shown(entry.name);
}

std::string EntrySite::place(std::size_t step) const {
  return fmt::format("entry {}: step {} {}", shown(entry.name), step, shown(entry.steps[step]->name));
}

std::uint64_t EntrySite::bound(Symbol symbol) const {
  return bound_of(entry, symbol);
}

namespace {

Status check_bounds(const EntrySite& site) {
  const EntryT& entry = site.entry;
  const std::string found =
      fmt::format("{} tokens, {} rows, {} sequences", entry.max_tokens, entry.max_rows, entry.max_sequences);
  if (entry.max_tokens == 0 || entry.max_rows == 0 || entry.max_sequences == 0)
    return wrong(site.place(), "bounds", found, "at least 1 of each");
  if (entry.max_rows > entry.max_tokens) return wrong(site.place(), "bounds", found, "at most as many rows as tokens");
  if (entry.from_tokens > entry.max_tokens || (entry.from_tokens != 0 && entry.kind != EntryKind::extend))
    return wrong(site.place(), "from_tokens", number(std::uint64_t{entry.from_tokens}),
                 entry.kind == EntryKind::extend ? fmt::format("at most {}", entry.max_tokens) : "0 but in an extend entry");
  const bool equal = entry.max_tokens == entry.max_rows && entry.max_rows == entry.max_sequences;
  if (entry.kind == EntryKind::decode && !equal)
    return wrong(site.place(), "bounds", found, "as many of each in a decode entry");
  return {};
}

std::string to_text(BufferRole role) {
  return EnumNameBufferRole(role);
}

struct RoleRule {
  BufferRole role;
  Symbol symbol;
  Format format;
  bool one_column;
};
constexpr RoleRule kRoleRules[] = {
    {BufferRole::ids, Symbol::tokens, Format::i32, true},
    {BufferRole::positions, Symbol::tokens, Format::i32, true},
    {BufferRole::output_rows, Symbol::rows, Format::i32, true},
    {BufferRole::logits, Symbol::rows, Format::f32, false},
    {BufferRole::next_ids, Symbol::rows, Format::i32, true},
    {BufferRole::deferred, Symbol::tokens, Format::i32, true},
};

Status check_role(const EntrySite& site, const BufferT& buffer, const std::string& place) {
  if ((buffer.role == BufferRole::workspace) != (buffer.symbol == Symbol::workspace))
    return wrong(place, "symbol", EnumNameSymbol(buffer.symbol), "workspace for role workspace, and for no other");
  for (const RoleRule& rule : kRoleRules) {
    if (rule.role != buffer.role) continue;
    const std::uint64_t columns = rule.one_column ? 1 : site.plan.model->vocab_size;
    const bool of_half = rule.symbol == Symbol::tokens && is_half(buffer.symbol);
    if ((buffer.symbol != rule.symbol && !of_half) || static_cast<Format>(buffer.format) != rule.format || buffer.columns != columns)
      return wrong(place, "type of role " + to_text(buffer.role),
                   fmt::format("{} [{}, {}]", to_string(static_cast<Format>(buffer.format)),
                               EnumNameSymbol(buffer.symbol), buffer.columns),
                   fmt::format("{} [{}, {}]", to_string(rule.format), EnumNameSymbol(rule.symbol), columns));
  }
  return {};
}

Status check_rows(const EntrySite& site, const BufferT& buffer, const std::string& place) {
  const auto format = static_cast<Format>(buffer.format);
  if (buffer.columns == 0) return wrong(place, "columns", "0", "at least 1");
  const auto row = product({buffer.columns, static_cast<std::uint64_t>(format_bits(format))});
  const std::uint64_t alignment = format == Format::i32 ? 4 : 64;
  if (!row || buffer.row_bytes < *row / 8 || buffer.row_bytes % alignment != 0)
    return wrong(
        place, "row_bytes", number(buffer.row_bytes),
        fmt::format("a multiple of {} that holds {} columns of {}", alignment, buffer.columns, to_string(format)));
  const auto bytes = product({buffer.row_bytes, site.bound(buffer.symbol)});
  if (!bytes || buffer.bytes < *bytes)
    return wrong(place, "bytes", number(buffer.bytes),
                 fmt::format("{} rows of {} bytes", site.bound(buffer.symbol), buffer.row_bytes));
  return {};
}

Status check_buffer(const EntrySite& site, const BufferT& buffer, const std::string& place) {
  KTC_RETURN_IF_ERROR(check_index(place, "device", buffer.device, site.plan.devices.size(), "devices"));
  if (!is_member(buffer.role))
    return wrong(place, "role", number(static_cast<std::uint64_t>(buffer.role)), "a BufferRole");
  if (!is_member(buffer.symbol))
    return wrong(place, "symbol", number(static_cast<std::uint64_t>(buffer.symbol)), "a Symbol");
  if (is_half(buffer.symbol) && (site.entry.kind != EntryKind::extend || site.entry.max_tokens < 2))
    return wrong(place, "symbol", EnumNameSymbol(buffer.symbol), "halves in extend entries of 2 tokens or more alone");
  const auto format = static_cast<Format>(buffer.format);
  if (!format_serves(format, FormatKind::activation) && format != Format::i32)
    return wrong(place, "format",
                 is_valid(format) ? std::string(to_string(format)) : number(std::uint64_t{buffer.format}),
                 "one of " + list_formats(FormatKind::activation) + ", i32");
  KTC_RETURN_IF_ERROR(check_role(site, buffer, place));
  if (buffer.symbol != Symbol::workspace) {
    KTC_RETURN_IF_ERROR(check_rows(site, buffer, place));
  } else if (buffer.bytes == 0) {
    return wrong(place, "bytes", "0", "at least 1");
  }
  const std::uint64_t alignment = buffer.symbol == Symbol::workspace && is_gpu(site.plan, buffer.device) ? 256 : 64;
  if (buffer.offset % alignment != 0)
    return wrong(place, "offset", number(buffer.offset), fmt::format("a multiple of {}", alignment));
  const auto end = sum(buffer.offset, buffer.bytes);
  const DeviceT& device = *site.plan.devices[buffer.device];
  if (!end || *end > device.arena_bytes)
    return wrong(
        place, "range in the arena",
        end ? fmt::format("[{}, {})", buffer.offset, *end) : fmt::format("[{}, more than 2^64)", buffer.offset),
        fmt::format("inside the {} bytes of {}", device.arena_bytes, shown(device.name)));
  return {};
}

// Which roles an entry has, exactly once each; it has none of the others. An input of tokens or rows may be on several devices,
// once on each, in an entry cut in halves once for each half; `deferred` need not be there.
Status check_roles(const EntrySite& site) {
  std::array<unsigned, 8> count{};
  std::set<std::tuple<BufferRole, std::uint32_t, Symbol>> inputs;
  const bool sample = site.entry.kind == EntryKind::sample, cut = is_cut(site.entry);
  for (const auto& buffer : site.entry.buffers) {
    ++count[static_cast<unsigned>(buffer->role)];
    if (!sample && cut && is_input(site, buffer->role) && buffer->symbol == Symbol::tokens)
      return wrong(site.place(), "symbol of role " + to_text(buffer->role), "tokens", "a half: others of the entry's buffers are of halves");
    if (!sample && is_input(site, buffer->role) && !inputs.emplace(buffer->role, buffer->device, buffer->symbol).second)
      return wrong(site.place(), "buffers of role " + to_text(buffer->role),
                   "2 on " + shown(site.plan.devices[buffer->device]->name), "1 on a device");
  }
  for (const RoleRule& rule : kRoleRules) {
    const bool in_sample = rule.role == BufferRole::logits || rule.role == BufferRole::next_ids;
    unsigned found = count[static_cast<unsigned>(rule.role)];
    const unsigned expected = sample ? in_sample : rule.role != BufferRole::next_ids;
    if (rule.role == BufferRole::deferred && (!sample || found == 0)) continue;
    if (!sample && is_input(site, rule.role) && found > 1) found = 1;
    if (found != expected)
      return wrong(site.place(), "buffers of role " + to_text(rule.role), number(std::uint64_t{found}),
                   fmt::format("{} in entries of kind {}", expected, EnumNameEntryKind(site.entry.kind)));
  }
  return {};
}

Status verify_entry(const EntrySite& site) {
  KTC_RETURN_IF_ERROR(check_bounds(site));
  KTC_RETURN_IF_ERROR(verify_buffers(site));
  if (site.entry.steps.empty()) return wrong(site.place(), "steps", "none", "at least 1");
  for (std::size_t step = 0; step < site.entry.steps.size(); ++step) {
    KTC_RETURN_IF_ERROR(verify_step(site, step));
    KTC_RETURN_IF_ERROR(verify_op(site, step));
  }
  KTC_RETURN_IF_ERROR(verify_graphs(site));
  KTC_RETURN_IF_ERROR(verify_parts(site));
  KTC_RETURN_IF_ERROR(verify_share(site));
  KTC_RETURN_IF_ERROR(verify_handoffs(site));
  KTC_RETURN_IF_ERROR(verify_flow(site));
  return verify_arena(site);
}

}  // namespace

Status verify_buffers(const EntrySite& site) {
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < site.entry.buffers.size(); ++i) {
    const BufferT& buffer = *site.entry.buffers[i];
    const std::string place = site.place() + ": " + item("buffers", i, buffer.name);
    if (buffer.name.empty()) return wrong(place, "name", "nothing", "a name");
    if (!names.insert(buffer.name).second) return wrong(place, "name", "it twice", "every name once");
    KTC_RETURN_IF_ERROR(check_buffer(site, buffer, place));
  }
  return check_roles(site);
}

Status verify_entries(const PlanT& plan) {
  std::set<std::string_view> names;
  const EntryT* last[3] = {};  // of each kind
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    const EntryT& entry = *plan.entries[i];
    const std::string place = item("entries", i, entry.name);
    if (entry.name.empty()) return wrong(place, "name", "nothing", "a name");
    if (!names.insert(entry.name).second) return wrong(place, "name", "it twice", "every name once");
    if (!is_member(entry.kind))
      return wrong(place, "kind", number(static_cast<std::uint64_t>(entry.kind)), "extend, decode or sample");
    const EntryT*& before = last[static_cast<unsigned>(entry.kind)];
    if (before != nullptr && entry.max_tokens <= before->max_tokens)
      return wrong(place, "max_tokens", number(std::uint64_t{entry.max_tokens}),
                   fmt::format("more than the {} of {}: buckets ascend", before->max_tokens, shown(before->name)));
    before = &entry;
    KTC_RETURN_IF_ERROR(verify_entry({plan, entry}));
  }
  for (const EntryKind kind : {EntryKind::extend, EntryKind::decode})
    if (last[static_cast<unsigned>(kind)] == nullptr)
      return wrong("entries", fmt::format("of kind {}", EnumNameEntryKind(kind)), "none", "at least 1");
  return {};
}

}  // namespace ktc::plan::detail
