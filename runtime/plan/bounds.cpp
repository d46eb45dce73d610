#include "runtime/plan/bounds.h"

#include <flatbuffers/minireflect.h>

#include "plan_generated.h"

namespace ktc::plan {
namespace {

using flatbuffers::Table;
using flatbuffers::TypeTable;

// Walks the tables that the verifier accepted, by the schema's reflection, and adds up what each reference reaches.
class Tally {
 public:
  explicit Tally(std::span<const std::byte> body)
      : begin_(reinterpret_cast<const std::uint8_t*>(body.data())), size_(body.size()), left_(body.size()) {}

  bool table(const std::uint8_t* at, const TypeTable* type) {
    const auto* object = reinterpret_cast<const Table*>(at);
    const auto* vtable = reinterpret_cast<const std::uint8_t*>(object->GetVTable());
    // the inline part: two 16-bit words, its own length among them, are at the start of the vtable
    if (!spend(flatbuffers::ReadScalar<flatbuffers::voffset_t>(vtable + 2))) return false;
    const std::uint8_t* previous = nullptr;  // a union's type is the field before it
    for (std::size_t i = 0; i < type->num_elems; ++i) {
      const std::uint8_t* field = object->GetAddressOf(static_cast<flatbuffers::voffset_t>((i + 2) * 2));
      if (field != nullptr && !value(field, type, i, previous)) return false;
      previous = field;
    }
    return true;
  }

 private:
  bool spend(std::uint64_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  static const std::uint8_t* follow(const std::uint8_t* field) {
    return field + flatbuffers::ReadScalar<flatbuffers::uoffset_t>(field);
  }

  // A length word and count * width bytes at `at`. The verifier takes a vector of structs for a vector of pointers and
  // checks eight bytes for each, whatever their width: the range is checked here again.
  bool array(const std::uint8_t* at, std::uint64_t width) {
    const std::uint64_t bytes = 4 + flatbuffers::ReadScalar<flatbuffers::uoffset_t>(at) * width;
    return bytes <= size_ - static_cast<std::uint64_t>(at - begin_) && spend(bytes);
  }

  bool value(const std::uint8_t* field, const TypeTable* type, std::size_t index, const std::uint8_t* union_type) {
    const flatbuffers::TypeCode code = type->type_codes[index];
    const auto kind = static_cast<flatbuffers::ElementaryType>(code.base_type);
    const TypeTable* target = code.sequence_ref >= 0 ? type->type_refs[code.sequence_ref]() : nullptr;
    if (kind == flatbuffers::ET_SEQUENCE && target->st == flatbuffers::ST_UNION) {
      const std::size_t member = union_type != nullptr ? *union_type : 0;
      // member 0 is NONE; members beyond ours are of a newer schema and are not unpacked
      if (member == 0 || member >= target->num_elems) return true;
      return table(follow(field), target->type_refs[target->type_codes[member].sequence_ref]());
    }
    if (!code.is_repeating) {
      if (kind == flatbuffers::ET_STRING) return array(follow(field), 1);
      if (kind == flatbuffers::ET_SEQUENCE && target->st == flatbuffers::ST_TABLE) return table(follow(field), target);
      return true;  // inline: paid with its table
    }
    const std::uint8_t* vector = follow(field);
    if (kind == flatbuffers::ET_SEQUENCE && target->st == flatbuffers::ST_STRUCT)
      return array(vector, static_cast<std::uint64_t>(target->values[target->num_elems]));
    if (kind != flatbuffers::ET_SEQUENCE && kind != flatbuffers::ET_STRING)
      return array(vector, flatbuffers::InlineSize(kind, target));
    if (!array(vector, sizeof(flatbuffers::uoffset_t))) return false;
    const auto count = flatbuffers::ReadScalar<flatbuffers::uoffset_t>(vector);
    for (flatbuffers::uoffset_t i = 0; i < count; ++i) {
      const std::uint8_t* element = follow(vector + 4 + 4 * static_cast<std::size_t>(i));
      if (kind == flatbuffers::ET_STRING ? !array(element, 1) : !table(element, target)) return false;
    }
    return true;
  }

  const std::uint8_t* begin_;
  std::uint64_t size_;
  std::uint64_t left_;
};

}  // namespace

bool structure_is_sound(std::span<const std::byte> body) {
  flatbuffers::Verifier::Options options;
  options.max_depth = 16;                                                         // the schema nests five deep
  options.max_tables = static_cast<flatbuffers::uoffset_t>(body.size() / 4 + 1);  // a table takes at least four bytes
  options.check_nested_flatbuffers = false;
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(body.data()), body.size(), options);
  if (!planfb::VerifyPlanBuffer(verifier)) return false;
  const auto* root = reinterpret_cast<const std::uint8_t*>(planfb::GetPlan(body.data()));
  return Tally(body).table(root, planfb::PlanTypeTable());
}

}  // namespace ktc::plan
