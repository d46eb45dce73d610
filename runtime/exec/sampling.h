// Chooses the next token from one row of logits.
//
// The processors and their order are those of Hugging Face's generate():
//   1. repetition penalty r over every distinct id of prompt and output: l > 0 becomes l / r, else l * r
//   2. temperature: l / T; T = 0 ends here with the largest logit (greedy)
//   3. top-k: the k largest stay; 0 is off
//   4. top-p: of what is left, the shortest prefix of the descending order whose probabilities reach p stays; 1 is off
//   5. min-p: of what is left, those with at least min_p times the largest probability stay; 0 is off
// The best candidate always stays. Equal logits: the lower id ranks higher, so exactly k ids survive top-k.
//
// The draw inverts the cumulative distribution, in order of ids, at uniform(seed, position). That number is a function
// of these two alone, so a sequence's text depends neither on its batch neighbours nor on how its prompt was cut into
// steps. Cost: O(V), and O(log k) for each of the few that get among the first k, O(log V) for each that top-p keeps.
// Probabilities are integers (runtime/kernels/cuda/sample_math.h), so that a device chooses the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/formats/sample_row.h"

namespace ktc::exec {

struct SamplingParameters {
  float temperature = 0;         // >= 0; 0 is greedy
  std::int32_t top_k = 0;        // >= 0; 0 is off
  float top_p = 1;               // in (0, 1]; 1 is off
  float min_p = 0;               // in [0, 1]; 0 is off
  float repetition_penalty = 1;  // > 0; 1 is off
  std::uint64_t seed = 0;
};

// Errors name the parameter, the value and the range.
Status check_sampling(const SamplingParameters& parameters);

// A number in [0, 1) with 53 random bits, from a counter-based generator: two rounds of the SplitMix64 finaliser
// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), one per word of the pair.
double uniform(std::uint64_t seed, std::uint64_t position);

// Whether a device can choose with these. What a device lacks, a closed list: the penalty, which needs the history.
inline bool device_samples(const SamplingParameters& parameters) { return parameters.repetition_penalty == 1; }

// For a device: all but the penalty. position as in Sampler::sample.
SampleRow sample_row(const SamplingParameters& parameters, std::uint64_t position);

// The error of a row in which logit `id` is not finite; `found`: its value, in words where it is not known.
Status not_finite(std::uint64_t position, std::int64_t id, std::string found);

// Keeps scratch memory between calls. Not thread-safe; any number may exist.
class Sampler {
 public:
  // logits: f32 [vocab], not changed. history: ids of prompt and output so far; read only with a repetition penalty.
  // position: of the token to be chosen, so the first one of a prompt of n tokens has position n.
  // Errors: a logit that is not finite (says which id), an empty row.
  Expected<std::int32_t> sample(std::span<const float> logits, const SamplingParameters& parameters,
                                std::uint64_t position, std::span<const std::int32_t> history);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    std::uint64_t weight = 0;
  };
  static bool ranks_lower(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  }

  static bool ranks_higher(const Candidate& a, const Candidate& b) { return ranks_lower(b, a); }

  std::span<const float> penalise(std::span<const float> logits, float penalty, std::span<const std::int32_t> history);
  void sort_by_id();
  void take_candidates(std::span<const float> logits, std::int32_t k);
  void weigh(const SampleRow& row, float best, std::size_t columns);
  void keep_top_p(double top_p);
  std::int32_t draw(const SampleRow& row) const;

  std::vector<float> penalised_;
  std::vector<bool> seen_;
  std::vector<Candidate> candidates_;
};

}  // namespace ktc::exec
