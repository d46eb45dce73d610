#include "models/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/nearest.h"

namespace ktc::models {
namespace {

// Everything a rope object may hold. Keys of other types are allowed and have no effect, as in transformers.
const std::vector<std::string>& object_keys() {
  static const std::vector<std::string> keys = {"rope_type",
                                                "type",
                                                "rope_theta",
                                                "factor",
                                                "original_max_position_embeddings",
                                                "beta_fast",
                                                "beta_slow",
                                                "truncate",
                                                "attention_factor",
                                                "mscale",
                                                "mscale_all_dim",
                                                "low_freq_factor",
                                                "high_freq_factor",
                                                "partial_rotary_factor",
                                                "short_factor",
                                                "long_factor",
                                                "mrope_section",
                                                "mrope_interleaved",
                                                "finetuned"};
  return keys;
}

class RopeReader {
 public:
  RopeReader(const Json& config, const RopeKeys& keys, const std::string& file, std::vector<std::string>* warnings)
      : config_(config), keys_(keys), file_(file), warnings_(*warnings) {}

  Expected<RopeConfig> read(double max_positions) {
    KTC_RETURN_IF_ERROR(choose_object());
    KTC_RETURN_IF_ERROR(check_keys());
    RopeConfig rope;
    KTC_RETURN_IF_ERROR(read_type(&rope.type));
    KTC_RETURN_IF_ERROR(read_theta(&rope.theta));
    KTC_RETURN_IF_ERROR(check_partial());
    if (rope.type == "default") return rope;  // decided by the type alone: v5 always writes the object

    KTC_RETURN_IF_ERROR(require("factor", &rope.factor));
    if (rope.factor < 1) return bad("factor", fmt::format("{}", rope.factor), "a number of at least 1");
    KTC_RETURN_IF_ERROR(read_number("original_max_position_embeddings", &rope.original_positions));
    if (rope.type == "yarn" && rope.original_positions == 0) {
      rope.original_positions = max_positions;
      warnings_.push_back(
          fmt::format("{}: {} has no original_max_position_embeddings: max_position_embeddings = {} is used", file_,
                      name_, max_positions));
    }
    if (rope.type == "llama3") {
      KTC_RETURN_IF_ERROR(require("original_max_position_embeddings", &rope.original_positions));
      KTC_RETURN_IF_ERROR(require("low_freq_factor", &rope.low_freq_factor));
      KTC_RETURN_IF_ERROR(require("high_freq_factor", &rope.high_freq_factor));
      if (!(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor))
        return bad("high_freq_factor",
                   fmt::format("{} and low_freq_factor {}", rope.high_freq_factor, rope.low_freq_factor),
                   "0 < low_freq_factor < high_freq_factor");
    }
    if (rope.original_positions < 0)
      return bad("original_max_position_embeddings", fmt::format("{}", rope.original_positions), "a positive number");
    KTC_RETURN_IF_ERROR(read_number("beta_fast", &rope.beta_fast));
    KTC_RETURN_IF_ERROR(read_number("beta_slow", &rope.beta_slow));
    if (!(rope.beta_slow > 0 && rope.beta_fast >= rope.beta_slow))
      return bad("beta_fast", fmt::format("{} and beta_slow {}", rope.beta_fast, rope.beta_slow),
                 "0 < beta_slow <= beta_fast");
    for (auto [key, target] : {std::pair{"attention_factor", &rope.attention_factor}, std::pair{"mscale", &rope.mscale},
                               std::pair{"mscale_all_dim", &rope.mscale_all_dim}}) {
      double value = 0;
      if (!find(key)) continue;
      KTC_RETURN_IF_ERROR(read_number(key, &value));
      *target = value;
    }
    if (const Json* truncate = find("truncate")) {
      if (!truncate->is_boolean()) return bad("truncate", show(*truncate), "true or false");
      rope.truncate = truncate->get<bool>();
    }
    return rope;
  }

 private:
  Status bad(std::string_view key, std::string found, std::string expected) const {
    return make_error(StatusCode::invalid_argument,
                      {file_, fmt::format("{}.{}", name_, key), std::move(found), std::move(expected), {}});
  }
  const Json* find(std::string_view key) const { return object_ ? find_key(*object_, key) : nullptr; }

  Status read_number(std::string_view key, double* target) const {
    const Json* value = find(key);
    if (!value) return Status();
    if (!value->is_number() || !std::isfinite(value->get<double>())) return bad(key, show(*value), "a number");
    *target = value->get<double>();
    return Status();
  }
  Status require(std::string_view key, double* target) const {
    if (!find(key)) return bad(key, "nothing", "a number, since the type is not default");
    return read_number(key, target);
  }

  Status choose_object() {
    const Json* parameters = pick(keys_.parameters);
    const std::string parameters_name = name_;
    const Json* scaling = pick(keys_.scaling);
    if (parameters) {
      if (scaling && type_of(*scaling) != type_of(*parameters))
        warnings_.push_back(fmt::format("{}: {} and {} disagree about the type ({} and {}): {} is used", file_,
                                        parameters_name, name_, type_of(*parameters), type_of(*scaling),
                                        parameters_name));
      object_ = parameters;
      name_ = parameters_name;
    } else {
      object_ = scaling;
    }
    if (object_ && !object_->is_object())
      return make_error(StatusCode::invalid_argument, {file_, name_, show(*object_), "an object or null", {}});
    if (!object_) name_ = keys_.parameters.empty() ? "rope_parameters" : keys_.parameters.front();
    return Status();
  }

  const Json* pick(const std::vector<std::string>& spellings) {
    for (const std::string& key : spellings)
      if (const Json* value = find_key(config_, key)) {
        name_ = key;
        return value;
      }
    return nullptr;
  }

  static std::string type_of(const Json& object) {
    for (const char* key : {"rope_type", "type"})
      if (const Json* type = find_key(object, key)) return type->is_string() ? type->get<std::string>() : show(*type);
    return "default";
  }

  Status check_keys() const {
    if (!object_) return Status();
    for (const auto& [key, value] : object_->items()) {
      if (value.is_object())
        return bad(key, "an object",
                   "one set of parameters for all layers: parameters by layer type are not supported");
      const auto& known = object_keys();
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string nearest = nearest_name(key, known);
      warnings_.push_back(fmt::format("{}: unknown key {}.{} is not used{}", file_, name_, show(key),
                                      nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
    }
    return Status();
  }

  Status read_type(std::string* type) const {
    const Json* newer = find("rope_type");
    const Json* older = find("type");
    if (newer && older && *newer != *older)
      return make_error(StatusCode::invalid_argument,
                        {file_, fmt::format("{0}.rope_type and {0}.type disagree", name_),
                         show(*newer) + " and " + show(*older), "equal types", "remove one of the two"});
    const Json* given = newer ? newer : older;
    if (!given) return Status();
    const std::string found = given->is_string() ? given->get<std::string>() : show(*given);
    if (std::find(keys_.types.begin(), keys_.types.end(), found) == keys_.types.end())
      return bad(newer ? "rope_type" : "type", "'" + found.substr(0, 80) + "'",
                 fmt::format("one of {}", fmt::join(keys_.types, ", ")));
    *type = found;
    return Status();
  }

  Status read_theta(double* theta) {
    const Json* nested = find("rope_theta");
    const std::string object_name = name_;
    const Json* top = pick(keys_.theta);
    const std::string top_name = top ? name_ : keys_.theta.empty() ? std::string() : keys_.theta.front();
    name_ = object_name;
    for (const Json* value : {nested, top})
      if (value && !(value->is_number() && std::isfinite(value->get<double>()) && value->get<double>() > 1))
        return make_error(
            StatusCode::invalid_argument,
            {file_, value == nested ? name_ + ".rope_theta" : top_name, show(*value), "a number above 1", {}});
    if (!nested && !top)
      return make_error(StatusCode::invalid_argument,
                        {file_,
                         "no base of the rotary embedding",
                         {},
                         fmt::format("key '{}' or '{}.rope_theta'", top_name,
                                     keys_.parameters.empty() ? "" : keys_.parameters.front()),
                         "a default would be a guess: write the value that the model was trained with"});
    *theta = (nested ? nested : top)->get<double>();
    if (nested && top && *theta != top->get<double>())
      warnings_.push_back(fmt::format("{}: {}.rope_theta = {} and {} = {} disagree: {}.rope_theta is used", file_,
                                      name_, show(*nested), top_name, show(*top), name_));
    return Status();
  }

  // The families of today rotate the whole rotary slice.
  Status check_partial() const {
    for (const auto& [object, prefix] : {std::pair{object_, name_ + "."}, std::pair{&config_, std::string()}}) {
      const Json* partial = object ? find_key(*object, "partial_rotary_factor") : nullptr;
      if (partial && *partial != 1.0)
        return make_error(
            StatusCode::unsupported,
            {file_, prefix + "partial_rotary_factor", show(*partial), "1: this family rotates whole heads", {}});
    }
    return Status();
  }

  const Json& config_;
  const RopeKeys& keys_;
  const std::string& file_;
  std::vector<std::string>& warnings_;
  const Json* object_ = nullptr;  // rope_parameters or rope_scaling
  std::string name_;              // its key
};

// YaRN's temperature: grows with the logarithm of the extension.
double yarn_magnitude(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

void apply_yarn(const RopeConfig& config, std::vector<double>* frequencies) {
  const double dim = 2.0 * static_cast<double>(frequencies->size());
  // the dimension whose wave turns `rotations` times within the positions seen in training
  auto dimension_of = [&](double rotations) {
    return dim * std::log(config.original_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = dimension_of(config.beta_fast), high = dimension_of(config.beta_slow);
  if (config.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies->size(); ++i) {
    double& f = (*frequencies)[i];
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f = f / config.factor * ramp + f * (1 - ramp);
  }
}

void apply_llama3(const RopeConfig& config, std::vector<double>* frequencies) {
  for (double& f : *frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < config.original_positions / config.high_freq_factor) continue;
    if (wavelength > config.original_positions / config.low_freq_factor) {
      f /= config.factor;
      continue;
    }
    const double blend = (config.original_positions / wavelength - config.low_freq_factor) /
                         (config.high_freq_factor - config.low_freq_factor);
    f = (1 - blend) * f / config.factor + blend * f;
  }
}

double yarn_attention_factor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  const double mscale = config.mscale.value_or(0), all_dim = config.mscale_all_dim.value_or(0);
  if (mscale != 0 && all_dim != 0)
    return yarn_magnitude(config.factor, mscale) / yarn_magnitude(config.factor, all_dim);
  return yarn_magnitude(config.factor, 1);
}

}  // namespace

Expected<RopeConfig> read_rope_config(const Json& config, const RopeKeys& keys, double max_positions,
                                      const std::string& config_file, std::vector<std::string>* warnings) {
  return RopeReader(config, keys, config_file, warnings).read(max_positions);
}

RopeDesc resolve_rope(const RopeConfig& config, RopeStyle style, std::uint32_t dim, bool temperature_in_softmax) {
  RopeDesc rope;
  rope.style = style;
  rope.dim = dim;
  rope.type = config.type;
  std::vector<double> frequencies(dim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(config.theta, -2.0 * static_cast<double>(i) / dim);
  if (config.type == "linear")
    for (double& f : frequencies) f /= config.factor;
  if (config.type == "llama3") apply_llama3(config, &frequencies);
  if (config.type == "yarn") {
    apply_yarn(config, &frequencies);
    rope.factor = static_cast<float>(yarn_attention_factor(config));
  }
  if (temperature_in_softmax && config.type != "default" && config.mscale_all_dim.value_or(0) != 0) {
    const double magnitude = yarn_magnitude(config.factor, *config.mscale_all_dim);
    rope.softmax_factor = static_cast<float>(magnitude * magnitude);
  }
  rope.inv_freq.assign(frequencies.begin(), frequencies.end());
  return rope;
}

}  // namespace ktc::models
