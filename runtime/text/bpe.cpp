#include "runtime/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
constexpr std::size_t kShortWord = 24;  // symbols; below, scanning beats a heap
constexpr std::size_t kCachedWordBytes = 64;
constexpr std::size_t kCachedWords = 1 << 15;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::size_t hash_of(std::uint64_t pair) {
  pair ^= pair >> 31;
  pair *= 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(pair ^ pair >> 29);
}

// Orders a max-heap so that its top has the lowest rank and, among equals, the leftmost position.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Expected<std::unique_ptr<Bpe>> Bpe::load(const JsonNode& node) {
  KTC_RETURN_IF_ERROR(node.expect_object());
  const JsonNode type = node.member("type");
  // files older than the "type" key are told by their merges
  if (!(type.is_null() ? node.member("merges").value().is_array() : type.value() == "BPE"))
    return type.unsupported("\"BPE\"");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode affix = node.member(key);
    if (!affix.is_null()) return affix.unsupported("null");
  }
  const JsonNode dropout = node.member("dropout");
  if (!dropout.is_null() && dropout.value() != 0) return dropout.unsupported("null");

  auto bpe = std::make_unique<Bpe>();
  KTC_ASSIGN_OR_RETURN(bpe->fuse_unknown_, node.member("fuse_unk").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(bpe->byte_fallback_, node.member("byte_fallback").boolean_or(false));
  KTC_ASSIGN_OR_RETURN(bpe->ignore_merges_, node.member("ignore_merges").boolean_or(false));
  KTC_RETURN_IF_ERROR(bpe->load_vocabulary(node.member("vocab")));
  KTC_RETURN_IF_ERROR(bpe->load_merges(node.member("merges")));

  const JsonNode unknown = node.member("unk_token");
  if (!unknown.is_null()) {
    KTC_ASSIGN_OR_RETURN(const std::string token, unknown.string());
    const auto id = bpe->id_of(token);
    if (!id) return unknown.error("a token of model.vocab");
    bpe->unknown_ = *id;
  }
  if (bpe->byte_fallback_) {
    bpe->byte_ids_.assign(256, -1);
    for (int b = 0; b < 256; ++b)
      if (const auto id = bpe->id_of(fmt::format("<0x{:02X}>", b))) bpe->byte_ids_[static_cast<std::size_t>(b)] = *id;
  }
  return bpe;
}

Status Bpe::load_vocabulary(const JsonNode& node) {
  KTC_RETURN_IF_ERROR(node.expect_object());
  tokens_.reserve(node.value().size());  // no reallocation below: the map holds views
  vocabulary_.reserve(node.value().size());
  for (const auto& [token, id] : node.value().items()) {
    KTC_ASSIGN_OR_RETURN(const std::int64_t number, node.member(token).integer(0, kMaxTokenId));
    const auto slot = static_cast<std::size_t>(number);
    if (slot >= index_of_id_.size()) index_of_id_.resize(std::max(slot + 1, index_of_id_.size() * 2), -1);
    if (index_of_id_[slot] >= 0)
      return make_error(StatusCode::data_corrupt,
                        {.place = node.place(),
                         .found = fmt::format("id {} for \"{}\" and \"{}\"", number,
                                              tokens_[static_cast<std::size_t>(index_of_id_[slot])], token),
                         .expected = "one token for each id"});
    index_of_id_[slot] = static_cast<std::int32_t>(tokens_.size());
    max_id_ = std::max(max_id_, static_cast<std::int32_t>(number));
    tokens_.push_back(token);
    vocabulary_.emplace(tokens_.back(), static_cast<std::int32_t>(number));
  }
  character_ids_.assign(0x400, -1);
  std::string character;
  for (char32_t c = 0; c < 0x400; ++c) {
    character.clear();
    append_utf8(character, c);
    if (const auto id = id_of(character)) character_ids_[c] = *id;
  }
  return Status();
}

Status Bpe::load_merges(const JsonNode& node) {
  KTC_RETURN_IF_ERROR(node.expect_array());
  std::vector<Merge> merges;
  merges.reserve(node.value().size());
  std::string joined;
  std::size_t index = 0;
  std::uint32_t rank = 0;
  for (const auto& item : node.value()) {
    std::string_view left, right;
    if (item.is_string()) {
      const std::string_view both = item.get_ref<const std::string&>();
      if (both.starts_with("#version")) {
        ++index;
        continue;
      }
      const std::size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos)
        return node.element(index).error("two tokens with a space between them");
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get_ref<const std::string&>();
      right = item[1].get_ref<const std::string&>();
    } else {
      return node.element(index).error("a pair of tokens");
    }
    joined.assign(left);
    joined += right;
    const auto a = vocabulary_.find(left), b = vocabulary_.find(right), ab = vocabulary_.find(joined);
    for (const auto& [found, token] :
         {std::pair(a, left), std::pair(b, right), std::pair(ab, std::string_view(joined))})
      if (found == vocabulary_.end())
        return make_error(StatusCode::data_corrupt,
                          {.place = node.element(index).place(),
                           .found = fmt::format("\"{}\", which model.vocab lacks", token),
                           .expected = "a merge of two tokens whose concatenation is a token"});
    merges.push_back({pair_of(a->second, b->second), rank++, ab->second});
    ++index;
  }
  index_merges(std::move(merges));
  return Status();
}

void Bpe::index_merges(std::vector<Merge> merges) {
  std::size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  table_.assign(capacity, Merge{kEmpty, 0, 0});
  for (const Merge& merge : merges) {
    std::size_t at = hash_of(merge.pair) & (capacity - 1);
    while (table_[at].pair != kEmpty && table_[at].pair != merge.pair) at = (at + 1) & (capacity - 1);
    table_[at] = merge;  // of two equal pairs the later one counts
  }
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = hash_of(pair) & (table_.size() - 1);; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].pair == pair) return &table_[at];
    if (table_[at].pair == kEmpty) return nullptr;
  }
}

std::optional<std::int32_t> Bpe::id_of(std::string_view token) const {
  const auto it = vocabulary_.find(token);
  if (it == vocabulary_.end()) return std::nullopt;
  return it->second;
}

const std::string* Bpe::token_of(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= index_of_id_.size() || index_of_id_[static_cast<std::size_t>(id)] < 0)
    return nullptr;
  return &tokens_[static_cast<std::size_t>(index_of_id_[static_cast<std::size_t>(id)])];
}

void Bpe::split_into_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  auto add = [&symbols](std::int32_t id) {
    const auto n = static_cast<std::int32_t>(symbols.size());
    if (n > 0) symbols.back().next = n;
    symbols.push_back({id, n - 1, -1});
  };
  bool pending_unknown = false;  // delayed, because fused unknowns are one token
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(word, at);
    const std::string_view character = word.substr(begin, at - begin);
    std::int32_t id = -1;
    if (c < 0x400) {
      id = character_ids_[c];
    } else if (const auto it = vocabulary_.find(character); it != vocabulary_.end()) {
      id = it->second;
    }
    if (id >= 0) {
      if (pending_unknown) add(unknown_);
      pending_unknown = false;
      add(id);
      continue;
    }
    if (byte_fallback_ && std::all_of(character.begin(), character.end(),
                                      [this](char b) { return byte_ids_[static_cast<unsigned char>(b)] >= 0; })) {
      // like the reference, without letting a delayed unknown token out first
      for (char b : character) add(byte_ids_[static_cast<unsigned char>(b)]);
      continue;
    }
    if (unknown_ < 0) continue;
    if (pending_unknown && !fuse_unknown_) add(unknown_);
    pending_unknown = true;
  }
  if (pending_unknown) add(unknown_);
}

void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& ranks = scratch.heap;  // ranks[i]: the merge of symbols i and i + 1
  auto candidate = [&](std::size_t i) {
    const Merge* merge = find_merge(symbols[i].id, symbols[i + 1].id);
    return merge == nullptr ? Scratch::Candidate{UINT32_MAX, 0, -1} : Scratch::Candidate{merge->rank, 0, merge->merged};
  };
  ranks.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) ranks.push_back(candidate(i));
  while (!ranks.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ranks.size(); ++i)
      if (ranks[i].rank < ranks[best].rank) best = i;
    if (ranks[best].rank == UINT32_MAX) break;
    symbols[best].id = ranks[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) ranks[best - 1] = candidate(best - 1);
    if (best < ranks.size()) ranks[best] = candidate(best);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  auto consider = [&](std::int32_t left, std::int32_t right) {
    if (const Merge* merge =
            find_merge(symbols[static_cast<std::size_t>(left)].id, symbols[static_cast<std::size_t>(right)].id))
      heap.push_back({merge->rank, left, merge->merged});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
    consider(static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1));
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(top.position)];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;  // an entry from before one of the two changed
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    const std::size_t before = heap.size();
    if (left.previous >= 0) consider(left.previous, top.position);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
    const std::size_t middle = heap.size();
    if (left.next >= 0) consider(top.position, left.next);
    if (heap.size() > middle) std::push_heap(heap.begin(), heap.end(), later);
  }
  std::erase_if(symbols, [](const Scratch::Symbol& s) { return s.id < 0; });
}

void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_)
    if (const auto id = id_of(word)) {
      ids.push_back(*id);
      return;
    }
  const bool cached = word.size() <= kCachedWordBytes;
  std::string key;
  if (cached) {
    key = word;
    if (const auto it = scratch.cache.find(key); it != scratch.cache.end()) {
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      return;
    }
  }
  split_into_symbols(word, scratch);
  if (scratch.symbols.size() <= kShortWord)
    merge_short(scratch);
  else
    merge_long(scratch);
  const std::size_t first = ids.size();
  for (const auto& symbol : scratch.symbols) ids.push_back(symbol.id);
  if (cached && scratch.cache.size() < kCachedWords)
    scratch.cache.emplace(std::move(key),
                          std::vector<std::int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()));
}

}  // namespace ktc::text
