// IR text is input like any other: whatever is in a file that --start-from reads, the compiler answers with a Status.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "compiler/pipeline/Pipeline.h"
#include "dialects/kt/KtWalk.h"
#include "mlir/IR/Verifier.h"

namespace ktc::compiler {
namespace {

std::string readFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A toy and whether its experts are on a GPU and on the CPU, some of them late.
struct Toy {
  const char* file;
  bool hybrid;
};

placement::Policy policyOf(const Toy& toy) {
  const std::string cpu = R"(  - match: {class: "*"}
    place: {device: cpu}
)";
  const std::string hybrid = R"(  - match: {class: RoutedExperts}
    place: {device: cpu}
  - match: {class: "*"}
    place: {device: "cuda:0"}
experts:
  on_gpu: 1
  gpu: {devices: ["cuda:0"]}
defer: {max_per_token: 1, phases: [decode], scope: all}
)";
  auto policy = placement::parse_policy("version: 1\nrules:\n" + (toy.hybrid ? hybrid : cpu) +
                                            "kv_cache: {dtype: f32, tokens: 16, sequences: 2, page: 4}\n"
                                            "batch: {decode: [1], chunk: 8}\n",
                                        "p.yaml");
  return std::move(*policy);
}

// Words, numbers and names of the text, with their places.
std::vector<std::pair<std::size_t, std::size_t>> tokensOf(const std::string& text) {
  auto isWord = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '@' || c == '%' || c == '#';
  };
  std::vector<std::pair<std::size_t, std::size_t>> tokens;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && isWord(text[end])) ++end;
    if (end > i) tokens.emplace_back(i, end - i);
    i = std::max(end, i + 1);
  }
  return tokens;
}

class Mutator {
 public:
  Mutator(std::string text, std::uint32_t seed) : text_(std::move(text)), tokens_(tokensOf(text_)), random_(seed) {}

  std::string next() {
    std::string text = text_;
    auto [begin, size] = tokens_[random_() % tokens_.size()];
    switch (random_() % 8) {
      case 0: return text.substr(0, random_() % text.size());  // cut short
      case 1: text.erase(begin, size); return text;
      case 2: {  // a line less, or one twice
        std::size_t line = text.rfind('\n', begin) + 1, end = text.find('\n', begin) + 1;
        if (random_() % 2) return text.substr(0, line) + text.substr(std::max(end, line));
        return text.insert(line, text.substr(line, end - line));
      }
      case 3: {  // a number at some edge
        static constexpr const char* kEdges[] = {
            "0", "1", "3", "64", "2147483648", "4294967296", "9223372036854775807", "18446744073709551615"};
        return text.replace(begin, size, kEdges[random_() % std::size(kEdges)]);
      }
      default: {  // another word of the text
        auto [other, length] = tokens_[random_() % tokens_.size()];
        return text.replace(begin, size, text_.substr(other, length));
      }
    }
  }

 private:
  std::string text_;
  std::vector<std::pair<std::size_t, std::size_t>> tokens_;
  std::mt19937 random_;
};

class HostileText : public ::testing::TestWithParam<Toy> {};

TEST_P(HostileText, IsRefusedOrCompiledButNeverCrashes) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  placement::Target target;
  target.name = "a machine";
  target.gpus.emplace_back();
  target.gpus.back().device = "cuda:0";
  target.gpus.back().memory = std::uint64_t{1} << 34;
  const placement::Policy policy = policyOf(GetParam());
  const std::string fresh = readFile(KTC_SOURCE_DIR "/lit-tests/Inputs/" + std::string(GetParam().file));
  std::vector<std::string> texts{fresh};
  for (Phase phase : {Phase::imported, Phase::placed, Phase::transferred, Phase::optimised, Phase::lowered}) {
    auto module = parseModule(context, fresh, "fresh");
    ASSERT_TRUE(module.ok()) << module.status().message();
    ASSERT_TRUE(resume(**module, std::nullopt, policy, target, {.stop = phase}).ok());
    texts.push_back(printModule(**module));
  }
  unsigned refused = 0, compiled = 0;
  for (std::uint32_t i = 0; i < texts.size(); ++i) {
    Mutator mutator(texts[i], i + 1);
    for (int round = 0; round < (GetParam().hybrid ? 300 : 1000); ++round) {
      const std::string text = mutator.next();
      auto module = parseModule(context, text, "mutated");
      if (module.ok() && resume(**module, std::nullopt, policy, target, {}).ok()) {
        EXPECT_TRUE(mlir::succeeded(mlir::verify(**module))) << text;
        ++compiled;
      } else {
        ++refused;
      }
    }
  }
  // both happen, or the mutations are of no use
  EXPECT_GT(refused, 500u);
  EXPECT_GT(compiled, 100u);
}

INSTANTIATE_TEST_SUITE_P(Toys, HostileText, ::testing::Values(Toy{"gqa.mlir", false}, Toy{"mla.mlir", false}, Toy{"moe.mlir", true}),
                         [](const auto& info) { return std::string(info.param.file, 3); });

}  // namespace
}  // namespace ktc::compiler
