// The strict YAML reader: what it accepts, the exact words of every refusal, and that no text makes it fall over.
#include "models/yaml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "models/nearest.h"

namespace ktc::yaml {
namespace {

Node must_parse(std::string_view text) {
  auto node = parse(text, "p.yaml");
  EXPECT_TRUE(node.ok()) << node.status().message();
  return node.ok() ? *node : Node();
}

template <typename T>
std::string message(const Expected<T>& expected) {
  return expected.status().message();
}

std::string parse_message(std::string_view text) {
  return message(parse(text, "p.yaml"));
}

TEST(YamlReader, ReadsEveryTypeOfAPolicy) {
  const Node root = must_parse(
      "version: 1\n"
      "rules:\n"
      "  - match: {class: \"*\", name: \"model\\\\.layers\\\\.(1?[0-9])\\\\..*\"}\n"
      "    place: {device: cuda:0, pin: true}\n"
      "share: 12.5%\n"
      "eps: 1e-6\n"
      "limits: {cuda:0: 24GiB, cpu: 382GiB}\n");
  auto map = root.map({"version", "rules", "share", "eps", "limits", "absent"});
  ASSERT_TRUE(map.ok()) << message(map);
  int version = 0;
  double eps = 0;
  std::uint32_t absent = 7;
  ASSERT_TRUE(map->require("version", &version).ok());
  ASSERT_TRUE(map->read("eps", &eps).ok());
  ASSERT_TRUE(map->read("absent", &absent).ok());
  EXPECT_EQ(version, 1);
  EXPECT_EQ(eps, 1e-6);
  EXPECT_EQ(absent, 7u);
  EXPECT_EQ(*(*map)["share"].percent(), 0.125);

  auto rules = (*map)["rules"].sequence();
  ASSERT_TRUE(rules.ok());
  auto rule = rules->at(0).map({"match", "place"});
  ASSERT_TRUE(rule.ok());
  auto match = (*rule)["match"].map({"class", "name"});
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(*(*match)["class"].string(), "*");
  EXPECT_EQ(*(*match)["name"].string(), "model\\.layers\\.(1?[0-9])\\..*");
  auto place = (*rule)["place"].map({"device", "pin"});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(*(*place)["device"].string(), "cuda:0");
  EXPECT_EQ((*place)["device"].path(), "rules[0].place.device");
  EXPECT_EQ(to_string((*place)["device"].position()), "p.yaml:4:21");
  EXPECT_TRUE(*(*place)["pin"].boolean());

  auto limits = (*map)["limits"].entries();
  ASSERT_TRUE(limits.ok());
  ASSERT_EQ(limits->size(), 2u);
  EXPECT_EQ((*limits)[0].key, "cuda:0");
  EXPECT_EQ(*(*limits)[0].value.bytes(), 24ull << 30);
  EXPECT_EQ((*limits)[1].key, "cpu");
}

TEST(YamlReader, RefusesUnknownKeysAndSuggestsTheNearest) {
  EXPECT_EQ(message(must_parse("rulse: 1\n").map({"version", "rules"})),
            "p.yaml:1:1: unknown key: found 'rulse', expected one of version, rules; did you mean 'rules'?");
  auto map = must_parse("kv_cache:\n  page: 16\n  zebra: 1\n").map({"kv_cache"});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(message((*map)["kv_cache"].map({"page", "tokens"})),
            "p.yaml:3:3: unknown key in kv_cache: found 'zebra', expected one of page, tokens");
}

TEST(YamlReader, RefusesDuplicateKeysWhereverTheyAre) {
  EXPECT_EQ(parse_message("a: 1\nb: 2\na: 3\n"),
            "p.yaml:3:1: duplicate key: found 'a' twice in one map; remove one of the two");
  EXPECT_EQ(parse_message("x: {k: 1, k: 1}\n"),
            "p.yaml:1:11: duplicate key: found 'k' twice in one map; remove one of the two");
}

TEST(YamlReader, NamesTheKeyThatIsMissing) {
  auto map = must_parse("a:\n  b: 1\n").map({"a", "c"});
  ASSERT_TRUE(map.ok());
  int value = 0;
  EXPECT_EQ(map->require("c", &value).message(), "p.yaml:1:1: key 'c' is missing");
  auto inner = (*map)["a"].map({"b", "d"});
  ASSERT_TRUE(inner.ok());
  EXPECT_EQ(inner->require("d", &value).message(), "p.yaml:2:3: key 'd' is missing in a");
}

TEST(YamlReader, TellsKindsApart) {
  auto map = must_parse(
                 "word: abc\nyes: yes\nquoted: \"12\"\noctal: 012\nempty:\nlist: [1]\nmap: {a: 1}\nbig: 300\nneg: -1\n"
                 "size: 24GB\nshare: 101%\ninf: .inf\nhex: 0x10\nhuge: 99999999999999999999\n")
                 .map({"word", "yes", "quoted", "octal", "empty", "list", "map", "big", "neg", "size", "share", "inf",
                       "hex", "huge"});
  ASSERT_TRUE(map.ok()) << message(map);
  EXPECT_EQ(message((*map)["word"].integer()), "p.yaml:1:7: word: found 'abc', expected an integer");
  EXPECT_EQ(message((*map)["yes"].boolean()), "p.yaml:2:6: yes: found 'yes', expected true or false");
  EXPECT_EQ(message((*map)["quoted"].integer(0)), "p.yaml:3:9: quoted: found '12', expected an integer of at least 0");
  EXPECT_EQ(
      message((*map)["octal"].integer()),
      "p.yaml:4:8: octal: found '012', expected an integer; remove the leading zero: some readers take it for octal");
  EXPECT_EQ(message((*map)["empty"].string()), "p.yaml:5:1: empty: found nothing, expected a text");
  EXPECT_EQ(message((*map)["list"].string()), "p.yaml:6:7: list: found a list, expected a text");
  EXPECT_EQ(message((*map)["map"].sequence()), "p.yaml:7:6: map: found a map, expected a list");
  EXPECT_EQ(message((*map)["word"].entries()), "p.yaml:1:7: word: found 'abc', expected a map");
  std::uint8_t byte = 0;
  EXPECT_EQ(map->read("big", &byte).message(), "p.yaml:8:6: big: found '300', expected an integer from 0 to 255");
  std::uint64_t wide = 0;
  EXPECT_FALSE(map->read("neg", &wide).ok());
  EXPECT_EQ(
      message((*map)["size"].bytes()),
      "p.yaml:10:7: size: found '24GB', expected a size with its unit, such as 24GiB or 512MiB; units are B, KiB, MiB, "
      "GiB and TiB");
  EXPECT_EQ(message((*map)["share"].percent()),
            "p.yaml:11:8: share: found '101%', expected a share from 0% to 100%, such as 10%");
  EXPECT_FALSE((*map)["inf"].number().ok());
  EXPECT_FALSE((*map)["hex"].integer().ok());
  EXPECT_FALSE((*map)["huge"].integer().ok());
  enum class E { one, two };
  EXPECT_EQ(message((*map)["word"].choice<E>({{"abd", E::one}, {"xyz", E::two}})),
            "p.yaml:1:7: word: found 'abc', expected one of abd, xyz; did you mean 'abd'?");
}

TEST(YamlReader, ReadsSizes) {
  EXPECT_EQ(parse_bytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(parse_bytes("100B"), 100u);
  EXPECT_EQ(parse_bytes("2 TiB"), 2ull << 40);
  for (const char* bad : {"", "GiB", "24", "-1GiB", "1e3GiB", "99999999999TiB", "1.2.3GiB", "0x1GiB", "nanB"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_percent("0%"), 0.0);
  for (const char* bad : {"", "%", "10", "-1%", "100.1%", "nan%", "1e1%"})
    EXPECT_EQ(parse_percent(bad), std::nullopt) << bad;
}

TEST(YamlReader, RefusesWhatTheSubsetExcludes) {
  EXPECT_EQ(parse_message("a: &x 1\nb: *x\n"),
            "p.yaml:1:4: anchor: found &x, expected plain values; write the value out where it is used");
  EXPECT_EQ(parse_message("a: !!int 1\n"),
            "p.yaml:1:4: tag: found tag:yaml.org,2002:int, expected plain values; remove the tag");
  EXPECT_EQ(parse_message("a: 1\n---\nb: 2\n"),
            "p.yaml: several documents in one file: found a second '---', expected one document");
  EXPECT_EQ(parse_message("? [1, 2]\n: 3\n"), "p.yaml:1:3: map key: found a list, expected a word");
  EXPECT_EQ(parse_message("a: \xff\n"), "p.yaml: not a text file: found bytes that are not UTF-8, expected UTF-8 text");
  EXPECT_EQ(parse_message(std::string_view("a: \0\n", 5)),
            "p.yaml: not a text file: found bytes that are not UTF-8, expected UTF-8 text");
  EXPECT_THAT(parse_message("a: [1, 2\n"), testing::StartsWith("p.yaml:2:1: not valid YAML: "));
  EXPECT_THAT(parse_message("a: 1\n\tb: 2\n"), testing::StartsWith("p.yaml:2:1: not valid YAML: "));
}

TEST(YamlReader, HostileDocumentsFailQuickly) {
  std::string laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c <= 'i'; ++c) {
    laughs += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) laughs += std::string(i ? "," : "") + "*" + static_cast<char>(c - 1);
    laughs += "]\n";
  }
  EXPECT_FALSE(parse(laughs, "p.yaml").ok());
  EXPECT_FALSE(parse(std::string(100'000, '['), "p.yaml").ok());
  EXPECT_FALSE(parse(std::string(100'000, '{'), "p.yaml").ok());
  std::string dashes;
  for (int i = 0; i < 5000; ++i) dashes += "- ";
  EXPECT_EQ(parse_message(dashes), "p.yaml:1:129: nested too deeply: expected at most 64 levels");
  std::string wide = "[";
  for (int i = 0; i < 200'000; ++i) wide += "1,";
  EXPECT_THAT(parse_message(wide + "]"), testing::HasSubstr("document too large"));
  EXPECT_EQ(parse_message(std::string(2 << 20, 'a')),
            "p.yaml: file too large: found 2097152 bytes, expected at most 1048576");
}

TEST(YamlReader, EmptyDocumentIsNothing) {
  for (const char* text : {"", "\n", "# a comment\n", "---\n"}) EXPECT_EQ(must_parse(text).kind(), Kind::null) << text;
  EXPECT_EQ(message(must_parse("").map({"version"})), "p.yaml:1:1: found nothing, expected a map with version");
}

// Truncations and byte flips of a real file, and random soup: a Status or a tree, never a crash.
TEST(YamlReader, SurvivesDamage) {
  const std::string good =
      "version: 1\nrules:\n  - match: {class: RoutedExperts, name: \"a\\\\.b\"}\n    place: {device: cpu, weights: "
      "int4, group: "
      "64}\n  - 'x'\nexperts: {on_gpu: {max: 12GiB}}\ntext: |\n  lines\n  more\n";
  for (std::size_t n = 0; n <= good.size(); ++n) (void)parse(std::string_view(good).substr(0, n), "p.yaml");
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random() % 128);
    (void)parse(text, "p.yaml");
  }
  const std::string_view alphabet = "ab:-[]{},&*!|>'\"%#?\n  \t1@`~";
  for (int round = 0; round < 50'000; ++round) {
    std::string text;
    for (std::size_t n = random() % 24; n > 0; --n) text += alphabet[random() % alphabet.size()];
    (void)parse(text, "p.yaml");
  }
}

TEST(NearestName, FindsTheLikelyMeaning) {
  EXPECT_EQ(nearest_name("hidden_sise", {"vocab_size", "hidden_size"}), "hidden_size");
  EXPECT_EQ(nearest_name("rulse", {"rules"}), "rules");
  EXPECT_EQ(nearest_name("zebra", {"rules", "version"}), "");
  EXPECT_EQ(nearest_name("", {"a"}), "");
  EXPECT_EQ(nearest_name("a", {}), "");
}

}  // namespace
}  // namespace ktc::yaml
