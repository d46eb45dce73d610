#include "runtime/text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <tuple>

#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

constexpr int kMaxDepth = 16;  // of Sequence in Sequence

// Nothing below U+00C0 decomposes canonically, below U+0300 composes, or below U+00A0 has a compatible decomposition; a
// text of such characters is left alone.
bool stays(std::string_view text, bool compose, bool compatible) {
  const char32_t limit = compatible ? 0xA0 : compose ? 0x300 : 0xC0;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    if (next_code_point(text, at) >= limit) return false;
  }
  return true;
}

// The normalisation tables of the reference library are older than utf8proc's: these characters stay as they are there.
bool unknown_to_reference(char32_t c) {
  return c == 0x11938 || c == 0x32FF || (c >= 0xA7F2 && c <= 0xA7F4) || c == 0xAB69 || (c >= 0x10781 && c <= 0x107BA) ||
         (c >= 0x1E030 && c <= 0x1E06D) || c == 0x1F16C || (c >= 0x1FBF0 && c <= 0x1FBF9);
}

void lowercase(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the only character whose lower case is two
      out += "i\xCC\x87";
      continue;
    }
    append_utf8(out, to_lower(c));
  }
  text = std::move(out);
}

void strip(std::string& text, bool left, bool right) {
  std::size_t begin = 0, end = text.size();
  while (right && end > 0) {
    std::size_t before = end;
    if (!is_white_space(previous_code_point(text, before))) break;
    end = before;
  }
  while (left && begin < end) {
    std::size_t after = begin;
    if (!is_white_space(next_code_point(text, after))) break;
    begin = after;
  }
  text = text.substr(begin, end - begin);
}

}  // namespace

void normalize_unicode(std::string& text, bool compose, bool compatible) {
  if (stays(text, compose, compatible)) return;
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0));
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    if (c < 0x80 || unknown_to_reference(static_cast<char32_t>(c))) {
      points.push_back(c);
      continue;
    }
    utf8proc_int32_t expansion[32];
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, expansion, 32, options, &boundary);
    if (n < 0 || n > 32)
      points.push_back(c);
    else
      points.insert(points.end(), expansion, expansion + n);
  }
  // marks behind their base by combining class; utf8proc's own sort is quadratic in a run's length
  auto combining = [](utf8proc_int32_t c) { return static_cast<int>(utf8proc_get_property(c)->combining_class); };
  std::vector<std::tuple<int, std::size_t, utf8proc_int32_t>> run;
  for (std::size_t i = 0; i < points.size();) {
    if (points[i] < 0x300 || combining(points[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < points.size() && combining(points[end]) != 0) ++end;
    if (end - i > 1) {  // stable: the place in the run is part of the key
      run.clear();
      for (std::size_t k = i; k < end; ++k) run.push_back({combining(points[k]), k, points[k]});
      std::sort(run.begin(), run.end());
      for (std::size_t k = i; k < end; ++k) points[k] = std::get<2>(run[k - i]);
    }
    i = end;
  }
  std::size_t size = points.size();
  if (compose) {
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(size),
                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (composed >= 0) size = static_cast<std::size_t>(composed);
  }
  text.clear();
  for (std::size_t i = 0; i < size; ++i) append_utf8(text, static_cast<char32_t>(points[i]));
}

Expected<Normalizer> Normalizer::load(const JsonNode& node) {
  Normalizer normalizer;
  KTC_RETURN_IF_ERROR(normalizer.load_into(node, 0));
  return normalizer;
}

Status Normalizer::load_into(const JsonNode& node, int depth) {
  if (node.is_null()) return Status();
  KTC_RETURN_IF_ERROR(node.expect_object());
  if (depth > kMaxDepth) return node.error(fmt::format("at most {} sequences inside each other", kMaxDepth));
  KTC_ASSIGN_OR_RETURN(const std::string type, node.member("type").string());
  if (type == "Sequence") {
    const JsonNode list = node.member("normalizers");
    KTC_RETURN_IF_ERROR(list.expect_array());
    for (std::size_t i = 0; i < list.value().size(); ++i) KTC_RETURN_IF_ERROR(load_into(list.element(i), depth + 1));
    return Status();
  }
  Step step{};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = type == "NFC" ? Kind::nfc : type == "NFD" ? Kind::nfd : type == "NFKC" ? Kind::nfkc : Kind::nfkd;
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    KTC_ASSIGN_OR_RETURN(step.content, node.member("prepend").string());
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    KTC_ASSIGN_OR_RETURN(step.content, node.member("content").string());
    KTC_ASSIGN_OR_RETURN(Regex pattern, load_pattern(node.member("pattern")));
    step.pattern = std::make_shared<const Regex>(std::move(pattern));
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    KTC_ASSIGN_OR_RETURN(step.left, node.member("strip_left").boolean());
    KTC_ASSIGN_OR_RETURN(step.right, node.member("strip_right").boolean());
  } else {
    return node.member("type").unsupported("NFC, NFD, NFKC, NFKD, Sequence, Prepend, Replace, Lowercase or Strip");
  }
  steps_.push_back(std::move(step));
  return Status();
}

Status Normalizer::apply(std::string& text, RegexScratch& scratch) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::nfc: normalize_unicode(text, true, false); break;
      case Kind::nfd: normalize_unicode(text, false, false); break;
      case Kind::nfkc: normalize_unicode(text, true, true); break;
      case Kind::nfkd: normalize_unicode(text, false, true); break;
      case Kind::prepend:
        if (!text.empty()) text.insert(0, step.content);
        break;
      case Kind::lowercase: lowercase(text); break;
      case Kind::strip: strip(text, step.left, step.right); break;
      case Kind::replace: {
        std::vector<Span> matches;
        KTC_RETURN_IF_ERROR(step.pattern->find_all(text, scratch, matches));
        if (matches.empty()) break;
        std::string out;
        std::size_t from = 0;
        for (const Span& match : matches) {
          out.append(text, from, match.begin - from);
          out += step.content;
          from = match.end;
        }
        out.append(text, from, text.size() - from);
        text = std::move(out);
        break;
      }
    }
  }
  return Status();
}

}  // namespace ktc::text
