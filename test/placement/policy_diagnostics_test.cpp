// Every diagnostic of the policy parser, word by word: place, found, expected, remedy.
#include <gtest/gtest.h>

#include "placement/policy.h"

namespace ktc::placement {
namespace {

struct Case {
  const char* what;
  std::string text;
  std::string message;
};

constexpr char kRules[] = "version: 1\nrules: [{match: {class: \"*\"}, place: {device: cpu}}]\n";

std::string with(const std::string& rest) {
  return kRules + rest;
}
std::string rule(const std::string& match, const std::string& place) {
  return "version: 1\nrules:\n  - match: " + match + "\n    place: " + place + "\n";
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.what;
}

class PolicyDiagnostics : public testing::TestWithParam<Case> {};

TEST_P(PolicyDiagnostics, IsWordedForTheUser) {
  const auto policy = parse_policy(GetParam().text, "some/folder/p.yaml");
  ASSERT_FALSE(policy.ok()) << "accepted:\n" << GetParam().text;
  EXPECT_EQ(policy.status().message(), GetParam().message);
  EXPECT_EQ(policy.status().code(), StatusCode::invalid_argument);
}

const Case kDocument[] = {
    {"Empty", "",
     "p.yaml: empty policy: found nothing, expected version: 1 and rules; start from one of the shipped policies "
     "(docs/policy.md)"},
    {"Null", "~",
     "p.yaml: empty policy: found nothing, expected version: 1 and rules; start from one of the shipped policies "
     "(docs/policy.md)"},
    {"NotAMap", "- 1",
     "p.yaml:1:1: found a list, expected a map with version, rules, experts, defer, kv_cache, batch, activation_group, limits, best-effort"},
    {"NotYaml", "rules: [", "p.yaml:1:1: not valid YAML: end of sequence flow not found"},
    {"NotText", std::string("version: 1\0", 11),
     "p.yaml: not a text file: found bytes that are not UTF-8, expected UTF-8 text"},
    {"NoVersion", "rules: []", "p.yaml:1:1: key 'version' is missing"},
    {"OtherVersion", "version: 2\nrules: []",
     "p.yaml:1:10: version: found '2', expected 1; this ktc reads version 1 only"},
    {"VersionIsText", "version: \"1\"\nrules: []",
     "p.yaml:1:10: version: found '1', expected 1; this ktc reads version 1 only"},
    {"NoRules", "version: 1", "p.yaml:1:1: key 'rules' is missing"},
    {"RulesEmpty", "version: 1\nrules: []",
     "p.yaml:2:8: rules: no rules: found an empty list, expected at least one; for example - {match: {class: \"*\"}, "
     "place: {device: cpu}}"},
    {"RulesNotAList", "version: 1\nrules: {match: 1}", "p.yaml:2:8: rules: found a map, expected a list"},
    {"UnknownKey", with("kvcache: {tokens: 1}"),
     "p.yaml:3:1: unknown key: found 'kvcache', expected one of version, rules, experts, defer, kv_cache, batch, "
     "activation_group, limits, best-effort; did you mean 'kv_cache'?"},
    {"DuplicateKey", with("batch: {chunk: 1}\nbatch: {chunk: 2}"),
     "p.yaml:4:1: duplicate key: found 'batch' twice in one map; remove one of the two"},
    {"Anchor", with("limits: &a {cpu: 1GiB}"),
     "p.yaml:3:9: anchor: found &a, expected plain values; write the value out where it is used"},
};

const Case kRuleCases[] = {
    {"RuleWithoutPlace", "version: 1\nrules:\n  - match: {class: Norm}\n",
     "p.yaml:3:5: key 'place' is missing in rules[0]"},
    {"RuleWithoutMatch", "version: 1\nrules:\n  - place: {device: cpu}\n",
     "p.yaml:3:5: key 'match' is missing in rules[0]"},
    {"MatchEmpty", rule("{}", "{device: cpu}"),
     "p.yaml:3:12: rules[0].match: a rule must say what it matches: found neither, expected class, name or both; to "
     "match everything write class: \"*\""},
    {"MatchUnknownKey", rule("{clas: Norm}", "{device: cpu}"),
     "p.yaml:3:13: unknown key in rules[0].match: found 'clas', expected one of class, name; did you mean 'class'?"},
    {"UnknownClass", rule("{class: Experts}", "{device: cpu}"),
     "p.yaml:3:20: rules[0].match.class: found 'Experts', expected one of Embedding, Attention, LinearAttention, "
     "Indexer, DenseMlp, SharedExperts, Router, RoutedExperts, Norm, Head, *"},
    {"MisspeltClass", rule("{class: Attentoin}", "{device: cpu}"),
     "p.yaml:3:20: rules[0].match.class: found 'Attentoin', expected one of Embedding, Attention, LinearAttention, "
     "Indexer, DenseMlp, SharedExperts, Router, RoutedExperts, Norm, Head, *; did you mean 'Attention'?"},
    {"EmptyPattern", rule("{name: \"\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: the pattern is empty: found '', expected a regular expression; remove name to "
     "match any name"},
    {"OpenBracket", rule("{name: \"model.[0-9\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found 'model.[0-9', expected an ECMAScript "
     "pattern of a whole module name; a '[' or ']' has no partner"},
    {"OpenParenthesis", rule("{name: \"model.(a|b\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found 'model.(a|b', expected an ECMAScript "
     "pattern of a whole module name; a '(' or ')' has no partner"},
    {"NothingToRepeat", rule("{name: \"*.mlp\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found '*.mlp', expected an ECMAScript pattern "
     "of a whole module name; there is nothing before '*' that it could repeat"},
    {"LookAhead", rule("{name: \"(?!model).*\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found '(?!model).*', expected an ECMAScript "
     "pattern of a whole module name; look-ahead (?= and (?! is not supported"},
    {"BackReference", rule("{name: \"(a)\\\\1\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found '(a)\\1', expected an ECMAScript "
     "pattern of a whole module name; back-references such as \\1 are not supported"},
    {"LongPattern", rule("{name: \"" + std::string(300, 'a') + "\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found "
     "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...', expected an ECMAScript "
     "pattern of a whole module name; it is 300 bytes long, at most 256 are allowed"},
    {"ManyStates", rule("{name: \"((a{50}){50}){50}\"}", "{device: cpu}"),
     "p.yaml:3:19: rules[0].match.name: not a usable regular expression: found '((a{50}){50}){50}', expected an "
     "ECMAScript pattern of a whole module name; its counted repetitions {n,m} multiply to too many states"},
    {"NoDevice", rule("{class: Norm}", "{weights: bf16}"), "p.yaml:4:12: key 'device' is missing in rules[0].place"},
    {"DeviceSpelling", rule("{class: Norm}", "{device: gpu}"),
     "p.yaml:4:21: rules[0].place.device: found 'gpu', expected a device: cpu, cuda:0, cuda:1, ..."},
    {"DeviceNumber", rule("{class: Norm}", "{device: \"cuda:01\"}"),
     "p.yaml:4:21: rules[0].place.device: found 'cuda:01', expected a device: cpu, cuda:0, cuda:1, ..."},
    {"PlaceUnknownKey", rule("{class: Norm}", "{device: cpu, weight: bf16}"),
     "p.yaml:4:26: unknown key in rules[0].place: found 'weight', expected one of device, weights, group, activations, "
     "pin; did you mean 'weights'?"},
    {"UnknownWeights", rule("{class: Norm}", "{device: cpu, weights: bfloat16}"),
     "p.yaml:4:35: rules[0].place.weights: found 'bfloat16', expected one of native, f32, bf16, fp8, int8, int4, "
     "mxfp4"},
    {"UnknownActivations", rule("{class: Norm}", "{device: cpu, activations: fp8}"),
     "p.yaml:4:39: rules[0].place.activations: found 'fp8', expected one of f32, bf16, int8"},
    {"PinNotBoolean", rule("{class: Norm}", "{device: cpu, pin: yes}"),
     "p.yaml:4:31: rules[0].place.pin: found 'yes', expected true or false"},
    {"GroupUnknown", rule("{class: Norm}", "{device: cpu, weights: int4, group: 48}"),
     "p.yaml:4:48: rules[0].place.group: found '48', expected one of row, 32, 64, 128"},
    {"GroupWithoutIntegers", rule("{class: Norm}", "{device: cpu, weights: bf16, group: 64}"),
     "p.yaml:4:48: rules[0].place.group: a group needs weights with scales: found weights: bf16, expected weights: int8, "
     "int4 or fp8 beside it; remove group"},
    {"GroupWithDefault", rule("{class: Norm}", "{device: cpu, group: row}"),
     "p.yaml:4:33: rules[0].place.group: a group needs weights with scales: found weights: native, the default, expected "
     "weights: int8, int4 or fp8 beside it; remove group"},
};

const Case kExperts[] = {
    {"UnknownStrategy", with("experts: {strategy: frequent}"),
     "p.yaml:3:21: experts.strategy: found 'frequent', expected one of uniform, frequency, front-loading, random, "
     "auto; did you mean 'frequency'?"},
    {"BudgetSpelling", with("experts: {on_gpu: ten}"),
     "p.yaml:3:19: experts.on_gpu: found 'ten', expected a share such as 10%, a number of experts per layer, or {max: "
     "12GiB}"},
    {"BudgetAboveAll", with("experts: {on_gpu: 101%}"),
     "p.yaml:3:19: experts.on_gpu: found '101%', expected a share such as 10%, a number of experts per layer, or {max: "
     "12GiB}"},
    {"BudgetWithoutUnit", with("experts: {on_gpu: {max: 12}}"),
     "p.yaml:3:25: experts.on_gpu.max: found '12', expected a size with its unit, such as 24GiB or 512MiB; units are "
     "B, KiB, MiB, GiB and TiB"},
    {"BudgetWithoutMax", with("experts: {on_gpu: {}}"), "p.yaml:3:19: key 'max' is missing in experts.on_gpu"},
    {"NoGpu", with("experts: {on_gpu: 10%}"),
     "p.yaml:3:19: experts.on_gpu: experts for GPUs without a GPU: found '10%', expected experts.gpu beside it; write "
     "gpu: {devices: [cuda:0]} under experts"},
    {"NoDevices", with("experts: {gpu: {weights: bf16}}"), "p.yaml:3:16: key 'devices' is missing in experts.gpu"},
    {"DevicesEmpty", with("experts: {gpu: {devices: []}}"),
     "p.yaml:3:26: experts.gpu.devices: no device: found an empty list, expected at least one GPU, such as [cuda:0]"},
    {"DevicesCpu", with("experts: {gpu: {devices: [cpu]}}"),
     "p.yaml:3:27: experts.gpu.devices[0]: found 'cpu', expected a GPU such as cuda:0; experts that stay on the CPU "
     "are placed by the rules"},
    {"DevicesTwice", with("experts: {gpu: {devices: [cuda:0, cuda:0]}}"),
     "p.yaml:3:35: experts.gpu.devices[1]: device named twice: found 'cuda:0', expected each GPU once"},
    {"GpuGroup", with("experts: {gpu: {devices: [cuda:0], group: 64}}"),
     "p.yaml:3:43: experts.gpu.group: a group needs weights with scales: found weights: native, the default, expected "
     "weights: int8, int4 or fp8 beside it; remove group"},
    {"FrequencyWithoutStatistics", with("experts: {strategy: frequency}"),
     "p.yaml:3:21: experts.strategy: the strategy needs counts: found 'frequency', expected experts.statistics beside "
     "it; record them with ktc-run --record-experts stats.json, or take uniform"},
    {"StatisticsEmpty", with("experts: {statistics: \"\"}"),
     "p.yaml:3:23: experts.statistics: found '', expected a path; ktc-run --record-experts writes such a file"},
    {"SeedNegative", with("experts: {seed: -1}"),
     "p.yaml:3:17: experts.seed: found '-1', expected an integer of at least 0"},
    {"UpdateZero", with("experts: {update: {every_tokens: 0}}"),
     "p.yaml:3:34: experts.update.every_tokens: found '0', expected an integer from 1 to 16777216"},
    {"UpdateEmpty", with("experts: {update: {}}"), "p.yaml:3:19: key 'every_tokens' is missing in experts.update"},
};

const Case kSections[] = {
    {"DeferNegative", with("defer: {max_per_token: -1}"),
     "p.yaml:3:24: defer.max_per_token: found '-1', expected an integer from 0 to 1024"},
    {"DeferPhase", with("defer: {phases: [extend]}"),
     "p.yaml:3:18: defer.phases[0]: found 'extend', expected one of prefill, decode"},
    {"DeferPhaseTwice", with("defer: {phases: [decode, decode]}"),
     "p.yaml:3:26: defer.phases[1]: phase named twice: found 'decode', expected each phase once"},
    {"DeferNoPhase", with("defer: {phases: []}"),
     "p.yaml:3:17: defer.phases: no phase: found an empty list, expected prefill, decode or both; to turn deferral off "
     "write max_per_token: 0"},
    {"DeferScope", with("defer: {scope: gpu}"),
     "p.yaml:3:16: defer.scope: found 'gpu', expected one of cpu, all; did you mean 'cpu'?"},
    {"KvDtype", with("kv_cache: {dtype: fp8}"), "p.yaml:3:19: kv_cache.dtype: found 'fp8', expected one of f32, bf16"},
    {"KvTokensZero", with("kv_cache: {tokens: 0}"),
     "p.yaml:3:20: kv_cache.tokens: found '0', expected an integer from 1 to 16777216"},
    {"KvTokensText", with("kv_cache: {tokens: many}"),
     "p.yaml:3:20: kv_cache.tokens: found 'many', expected an integer from 1 to 16777216"},
    {"KvTokensOctal", with("kv_cache: {tokens: 010}"),
     "p.yaml:3:20: kv_cache.tokens: found '010', expected an integer from 1 to 16777216; remove the leading zero: some "
     "readers take it for octal"},
    {"KvSequencesZero", with("kv_cache: {sequences: 0}"),
     "p.yaml:3:23: kv_cache.sequences: found '0', expected an integer from 1 to 65536"},
    {"KvPageZero", with("kv_cache: {page: 0}"),
     "p.yaml:3:18: kv_cache.page: found '0', expected an integer from 1 to 1024"},
    {"KvPageNoPower", with("kv_cache: {page: 24}"),
     "p.yaml:3:18: kv_cache.page: found '24', expected a power of two; take 16 or 32"},
    {"KvPageHuge", with("kv_cache: {page: 2048}"),
     "p.yaml:3:18: kv_cache.page: found '2048', expected an integer from 1 to 1024"},
    {"BatchEmpty", with("batch: {decode: []}"),
     "p.yaml:3:17: batch.decode: no bucket: found an empty list, expected at least one, such as [1, 2, 4, 8]"},
    {"BatchNumber", with("batch: {decode: 8}"), "p.yaml:3:17: batch.decode: found '8', expected a list"},
    {"BatchZero", with("batch: {decode: [0]}"),
     "p.yaml:3:18: batch.decode[0]: found '0', expected an integer from 1 to 65536"},
    {"BatchDescends", with("batch: {decode: [1, 4, 2]}"),
     "p.yaml:3:24: batch.decode[2]: buckets must ascend: found '2', expected more than 4"},
    {"BatchTwice", with("batch: {decode: [1, 1]}"),
     "p.yaml:3:21: batch.decode[1]: buckets must ascend: found '1', expected more than 1"},
    {"ChunkZero", with("batch: {chunk: 0}"),
     "p.yaml:3:16: batch.chunk: found '0', expected an integer from 1 to 1048576"},
    {"StreamBelowChunk", with("batch: {chunk: 512, stream_chunk: 256}"),
     "p.yaml:3:35: batch.stream_chunk: smaller than chunk: found '256', expected at least 512; remove stream_chunk to "
     "stream nothing"},
    {"StreamFromZero", with("batch: {chunk: 64, stream_chunk: 256, stream_from: 0}"),
     "p.yaml:3:52: batch.stream_from: found '0', expected an integer from 1 to 1048576"},
    {"StreamFromAbove", with("batch: {chunk: 64, stream_chunk: 256, stream_from: 257}"),
     "p.yaml:3:52: batch.stream_from: more tokens than a step has: found '257', expected at most 256; remove stream_chunk to stream nothing"},
    {"StreamFromAlone", with("batch: {stream_from: 8}"),
     "p.yaml:3:22: batch.stream_from: nothing is streamed: found '8', expected a batch with stream_chunk; add stream_chunk or remove stream_from"},
    {"StreamShareAlone", with("batch: {stream_share: false}"),
     "p.yaml:3:23: batch.stream_share: nothing is streamed: found 'false', expected a batch with stream_chunk; add stream_chunk or remove stream_share"},
    {"LimitDevice", with("limits: {gpu: 1GiB}"),
     "p.yaml:3:10: unknown key in limits: found 'gpu', expected a device: cpu, cuda:0, cuda:1, ..."},
    {"LimitZero", with("limits: {cpu: 0GiB}"),
     "p.yaml:3:15: limits.cpu: a limit of nothing: found '0GiB', expected more than 0B; remove the line to use all of "
     "the device"},
    {"LimitUnit", with("limits: {cpu: 382GB}"),
     "p.yaml:3:15: limits.cpu: found '382GB', expected a size with its unit, such as 24GiB or 512MiB; units are B, "
     "KiB, MiB, GiB and TiB"},
    {"LimitList", with("limits: [cpu]"), "p.yaml:3:9: limits: found a list, expected a map"},
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.what;
}
INSTANTIATE_TEST_SUITE_P(Document, PolicyDiagnostics, testing::ValuesIn(kDocument), name_of);
INSTANTIATE_TEST_SUITE_P(Rule, PolicyDiagnostics, testing::ValuesIn(kRuleCases), name_of);
INSTANTIATE_TEST_SUITE_P(Experts, PolicyDiagnostics, testing::ValuesIn(kExperts), name_of);
INSTANTIATE_TEST_SUITE_P(Sections, PolicyDiagnostics, testing::ValuesIn(kSections), name_of);

}  // namespace
}  // namespace ktc::placement
