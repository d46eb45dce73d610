// The fixed vocabulary of module classes: which attributes and which slots each class and kind has, and the shape that
// the mathematics asks of every slot. Family files are checked against it when they are read; docs/models.md describes
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_desc.h"

namespace ktc::models {

enum class AttributeType : std::uint8_t { integer, boolean, number };

struct AttributeSchema {
  std::string_view name;
  AttributeType type;
  bool required = true;
};

struct SlotSchema {
  std::string_view role;
  bool required = true;  // some storage of this role must be declared; a `when` may still leave it out
};

struct ModuleSchema {
  ModuleClass cls;
  std::string_view kind;  // empty: the class has one kind and the family file names none
  std::vector<AttributeSchema> attributes;
  std::vector<SlotSchema> slots;
  bool has_rope = false;
};

// Null when the class has no such kind.
const ModuleSchema* find_module_schema(ModuleClass cls, std::string_view kind);
// The kinds of a class; {""} where it has only one, empty for classes that no family can declare yet.
std::vector<std::string> module_kinds(ModuleClass cls);

// The shape [batch, rows, columns] of the slot `role` of a module with these attributes; batch 0 for an unknown role.
// `hidden` and `vocab` are the model's. Products that overflow saturate: no tensor can have that shape.
struct SlotShape {
  std::uint64_t batch = 0, rows = 0, columns = 0;
  bool operator==(const SlotShape&) const = default;
};
SlotShape slot_shape(const ModuleAttributes& attributes, std::string_view role, std::uint64_t hidden,
                     std::uint64_t vocab);
std::string to_string(const SlotShape& shape);  // "[4, 128, 64]", "[128, 64]", "[64]"

}  // namespace ktc::models
