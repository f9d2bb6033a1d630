#include "vq/format.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"
#include "vq/packing.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

constexpr size_t kMaxName = 48;
constexpr int kMaxSubvector = 16;
constexpr int kMaxEntries = 65536;
constexpr int kMaxStages = 8;
constexpr int kMaxGroup = 1 << 20;
constexpr int kMaxTile = 1 << 20;

constexpr std::string_view kKindNames[] = {"dense", "int", "table", "lattice"};
constexpr std::string_view kDTypeNames[] = {"fp32", "fp16", "bf16"};
constexpr std::string_view kScopeNames[] = {"tensor", "tile", "in-group", "head-channel"};
constexpr std::string_view kScaleNames[] = {"none", "per-tensor", "per-output", "group"};
constexpr std::string_view kAxisNames[] = {"in", "out"};

template <typename Enum, size_t N>
std::string Name(const std::string_view (&names)[N], Enum value) {
  return std::string(names[static_cast<size_t>(value)]);
}

[[noreturn]] void Refuse(const Format& format, std::string_view field, std::string_view found,
                         std::string_view allowed) {
  Fail("format {}: {}: found {}, allowed: {}", format.name, field, found, allowed);
}

void CheckRange(const Format& format, std::string_view field, int64_t found, int64_t low, int64_t high) {
  if (found < low || found > high) {
    Refuse(format, field, std::to_string(found), fmt::format("{} to {}", low, high));
  }
}

void CheckName(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return c < 128 && (std::isalnum(c) ||
                           std::string_view("_.<>,-").find(static_cast<char>(c)) != std::string_view::npos);
      });
  if (!good) {
    const std::string shown = nlohmann::json(name.substr(0, kMaxName))
                                  .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    Fail("format: name: found {}, allowed: 1 to {} of A-Z a-z 0-9 _ . < > , -", shown, kMaxName);
  }
}

void CheckScale(const Format& f) {
  if (f.scale == ScaleKind::kGroup) {
    CheckRange(f, "group", f.group, 1, kMaxGroup);
  } else if (f.group != 0) {
    Refuse(f, "group", std::to_string(f.group), "no group unless scale is \"group\"");
  }
}

void ValidateTable(const Format& f) {
  CheckRange(f, "subvector", f.subvector, 1, kMaxSubvector);
  CheckRange(f, "entries (stages)", f.stages(), 1, kMaxStages);
  for (const int entries : f.entries) CheckRange(f, "entries", entries, 2, kMaxEntries);
  switch (f.scope.kind) {
    case ScopeKind::kTile:
      CheckRange(f, "scope rows", f.scope.rows, 1, kMaxTile);
      CheckRange(f, "scope cols", f.scope.cols, 1, kMaxTile);
      break;
    case ScopeKind::kInGroup:
      CheckRange(f, "scope rows", f.scope.rows, 0, 0);
      CheckRange(f, "scope cols", f.scope.cols, 1, kMaxTile);
      break;
    case ScopeKind::kTensor:
    case ScopeKind::kHeadChannel:
      CheckRange(f, "scope rows", f.scope.rows, 0, 0);
      CheckRange(f, "scope cols", f.scope.cols, 0, 0);
      break;
  }
  const bool tile = f.scope.kind == ScopeKind::kTile;
  if (f.axis == Axis::kIn && f.scope.cols % f.subvector != 0) {
    Refuse(f, "scope cols", std::to_string(f.scope.cols),
           fmt::format("a multiple of subvector, {}", f.subvector));
  }
  if (f.axis == Axis::kOut && tile && f.scope.rows % f.subvector != 0) {
    Refuse(f, "scope rows", std::to_string(f.scope.rows),
           fmt::format("a multiple of subvector, {}", f.subvector));
  }
  if (f.axis == Axis::kOut && f.scope.kind == ScopeKind::kHeadChannel) {
    Refuse(f, "axis", "out", "in, with scope head-channel");
  }
  if (f.axis == Axis::kIn && f.scale == ScaleKind::kGroup && f.group % f.subvector != 0) {
    Refuse(f, "group", std::to_string(f.group), fmt::format("a multiple of subvector, {}", f.subvector));
  }
  if (f.axis == Axis::kOut && f.scale == ScaleKind::kPerTensor)
    Refuse(f, "scale", "per-tensor", "none, per-output, group");
}

/// The number at the front of `text`, which is cut off; -1 where there is none or it is too large.
int64_t TakeNumber(std::string_view& text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

int Narrow(int64_t value) { return static_cast<int>(std::clamp<int64_t>(value, -1, INT32_MAX)); }

constexpr std::string_view kNotation =
    "VQ<v,b,R> and any of -tensor, -tileRxC, -ingroupC, -head, -row, -gN, -out behind it, as in "
    "VQ<4,8,1>-tile256x256";

/// "VQ<6,10,2>-tile96x192-g64".
Format ParseNotation(std::string_view text) {
  Format f;
  f.name = text;
  CheckName(f.name);
  f.kind = FormatKind::kTable;
  std::string_view rest = text.substr(3);
  const int64_t v = TakeNumber(rest);
  const bool comma = Take(rest, ",");
  const int64_t bits = comma ? TakeNumber(rest) : -1;
  const bool comma2 = comma && Take(rest, ",");
  const int64_t stages = comma2 ? TakeNumber(rest) : -1;
  if (v < 0 || bits < 0 || stages < 0 || !Take(rest, ">")) Fail("format {}: allowed: {}", f.name, kNotation);
  f.subvector = Narrow(v);
  CheckRange(f, "code bits", bits, 1, 16);
  CheckRange(f, "stages", stages, 1, kMaxStages);
  f.entries.assign(static_cast<size_t>(stages), 1 << bits);
  bool scope = false;  // each of the three may be said once
  bool scale = false;
  bool axis = false;
  while (!rest.empty()) {
    const std::string_view suffix = rest;
    bool* said = &scope;
    if (Take(rest, "-tensor")) {
      f.scope = {};
    } else if (Take(rest, "-tile")) {
      const int rows = Narrow(TakeNumber(rest));
      const bool by = Take(rest, "x");
      f.scope = {ScopeKind::kTile, rows, by ? Narrow(TakeNumber(rest)) : -1};
    } else if (Take(rest, "-ingroup")) {
      f.scope = {ScopeKind::kInGroup, 0, Narrow(TakeNumber(rest))};
    } else if (Take(rest, "-head")) {
      f.scope = {ScopeKind::kHeadChannel, 0, 0};
    } else if (Take(rest, "-row")) {
      f.scale = ScaleKind::kPerOutput;
      said = &scale;
    } else if (Take(rest, "-out")) {
      f.axis = Axis::kOut;
      said = &axis;
    } else if (Take(rest, "-g")) {
      f.scale = ScaleKind::kGroup;
      f.group = Narrow(TakeNumber(rest));
      said = &scale;
    } else {
      Fail("format {}: found \"{}\" behind VQ<v,b,R>, allowed: {}", f.name, rest, kNotation);
    }
    if (*said) Fail("format {}: found \"{}\", allowed: one scope, one scale, one axis", f.name, suffix);
    *said = true;
  }
  Validate(f);
  return f;
}

/// "int4-g96-sym".
Format ParseIntNotation(std::string_view text) {
  Format f;
  f.name = text;
  CheckName(f.name);
  f.kind = FormatKind::kInt;
  std::string_view rest = text.substr(3);
  f.bits = Narrow(TakeNumber(rest));
  if (Take(rest, "-row")) {
    f.scale = ScaleKind::kPerOutput;
  } else if (Take(rest, "-g")) {
    f.scale = ScaleKind::kGroup;
    f.group = Narrow(TakeNumber(rest));
  }
  f.symmetric = Take(rest, "-sym");
  if (!rest.empty() || f.scale == ScaleKind::kNone)
    Fail("format: found \"{}\", allowed: int<bits>-g<group> and int<bits>-row, with -sym behind it or not",
         f.name);
  Validate(f);
  return f;
}

Format FromJson(std::string_view text, const std::string& where) {
  const nlohmann::json parsed = ParseJson(text, where);
  const JsonReader reader(parsed, where);
  reader.AllowOnly({"name", "kind", "dtype", "bits", "symmetric", "subvector", "axis", "entries", "scope",
                    "scale", "group", "rotation", "permutation", "input_affine"});
  Format f;
  f.name = reader.String("name");
  CheckName(f.name);
  f.kind = static_cast<FormatKind>(reader.Choice("kind", {"dense", "int", "table", "lattice"}));
  if (reader.Has("dtype")) f.dtype = static_cast<DType>(reader.Choice("dtype", {"fp32", "fp16", "bf16"}));
  f.bits = static_cast<int>(reader.IntOr("bits", 0, 16, 0));
  f.symmetric = reader.BoolOr("symmetric", false);
  f.subvector = static_cast<int>(reader.IntOr("subvector", 0, kMaxSubvector, 0));
  if (reader.Has("axis")) f.axis = static_cast<Axis>(reader.Choice("axis", {"in", "out"}));
  if (reader.Has("entries")) {
    for (const int64_t entries : reader.Ints("entries", 2, kMaxEntries))
      f.entries.push_back(static_cast<int>(entries));
  }
  if (reader.Has("scope")) {
    const JsonReader scope = reader.Object("scope");
    scope.AllowOnly({"kind", "rows", "cols"});
    f.scope.kind =
        static_cast<ScopeKind>(scope.Choice("kind", {"tensor", "tile", "in-group", "head-channel"}));
    f.scope.rows = static_cast<int>(scope.IntOr("rows", 0, kMaxTile, 0));
    f.scope.cols = static_cast<int>(scope.IntOr("cols", 0, kMaxTile, 0));
  }
  if (reader.Has("scale")) {
    f.scale = static_cast<ScaleKind>(reader.Choice("scale", {"none", "per-tensor", "per-output", "group"}));
  }
  f.group = static_cast<int>(reader.IntOr("group", 0, kMaxGroup, 0));
  f.rotation = reader.BoolOr("rotation", false);
  f.permutation = reader.BoolOr("permutation", false);
  f.input_affine = reader.BoolOr("input_affine", false);
  Validate(f);
  return f;
}

}  // namespace

int Format::CodeBits(int stage) const {
  return kind == FormatKind::kInt ? bits : BitsFor(entries[static_cast<size_t>(stage)]);
}

void Validate(const Format& f) {
  CheckName(f.name);
  const bool vq = f.kind == FormatKind::kTable || f.kind == FormatKind::kLattice;
  if (f.kind != FormatKind::kInt && (f.bits != 0 || f.symmetric))
    Refuse(f, "bits", std::to_string(f.bits), "only kind int has bits");
  if (!vq && (f.subvector != 0 || !f.entries.empty())) {
    Refuse(f, "subvector", std::to_string(f.subvector),
           "only kinds table and lattice have subvectors and entries");
  }
  if (f.kind != FormatKind::kTable && (f.scope != Scope{} || f.axis != Axis::kIn)) {
    Refuse(f, "scope", Name(kScopeNames, f.scope.kind), "only kind table has a scope and an axis");
  }
  if (f.kind != FormatKind::kDense && f.dtype != Format().dtype) {
    Refuse(f, "dtype", Name(kDTypeNames, f.dtype), "only kind dense has a dtype");
  }
  if (f.kind == FormatKind::kDense && (f.rotation || f.permutation || f.input_affine)) {
    Refuse(f, "rotation, permutation, input_affine", "true", "false for kind dense");
  }
  CheckScale(f);
  switch (f.kind) {
    case FormatKind::kDense:
      if (f.scale != ScaleKind::kNone) Refuse(f, "scale", Name(kScaleNames, f.scale), "none");
      break;
    case FormatKind::kInt:
      if (f.bits != 2 && f.bits != 3 && f.bits != 4 && f.bits != 8)
        Refuse(f, "bits", std::to_string(f.bits), "2, 3, 4, 8");
      if (f.scale != ScaleKind::kPerOutput && f.scale != ScaleKind::kGroup) {
        Refuse(f, "scale", Name(kScaleNames, f.scale), "per-output, group");
      }
      break;
    case FormatKind::kTable:
      ValidateTable(f);
      break;
    case FormatKind::kLattice:
      CheckRange(f, "subvector", f.subvector, 8, 8);
      CheckRange(f, "entries (stages)", f.stages(), 1, 2);
      for (const int entries : f.entries) CheckRange(f, "entries", entries, 65536, 65536);
      if (f.scale != ScaleKind::kPerTensor) Refuse(f, "scale", Name(kScaleNames, f.scale), "per-tensor");
      break;
  }
}

Format ParseFormat(std::string_view text) {
  for (const Format& format : NamedFormats()) {
    if (format.name == text) return format;
  }
  if (text.starts_with("VQ<")) return ParseNotation(text);
  if (text.starts_with("int")) return ParseIntNotation(text);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return FromJson(text, "format");
  if (text.ends_with(".json")) {
    return FromJson(ReadTextFile(std::filesystem::path(text), uint64_t{1} << 20), std::string(text));
  }
  std::string names;
  for (const Format& format : NamedFormats()) names += (names.empty() ? "" : " ") + format.name;
  const std::string shown =
      nlohmann::json(text.substr(0, kMaxName)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  Fail(
      "format: found {}, allowed: {}, int<bits>-g<group>, VQ<v,b,R>, a JSON object, the path of a .json file",
      shown, names);
}

std::string ToJson(const Format& f) {
  nlohmann::ordered_json json;
  json["name"] = f.name;
  json["kind"] = Name(kKindNames, f.kind);
  switch (f.kind) {
    case FormatKind::kDense:
      json["dtype"] = Name(kDTypeNames, f.dtype);
      break;
    case FormatKind::kInt:
      json["bits"] = f.bits;
      json["symmetric"] = f.symmetric;
      break;
    case FormatKind::kTable:
    case FormatKind::kLattice:
      json["subvector"] = f.subvector;
      json["entries"] = f.entries;
      break;
  }
  if (f.kind == FormatKind::kTable) {
    json["axis"] = Name(kAxisNames, f.axis);
    json["scope"] = {{"kind", Name(kScopeNames, f.scope.kind)}};
    if (f.scope.rows > 0) json["scope"]["rows"] = f.scope.rows;
    if (f.scope.cols > 0) json["scope"]["cols"] = f.scope.cols;
  }
  if (f.scale != ScaleKind::kNone) json["scale"] = Name(kScaleNames, f.scale);
  if (f.group > 0) json["group"] = f.group;
  if (f.rotation) json["rotation"] = true;
  if (f.permutation) json["permutation"] = true;
  if (f.input_affine) json["input_affine"] = true;
  return json.dump();
}

const char* ToString(DType dtype) { return kDTypeNames[static_cast<size_t>(dtype)].data(); }

int BytesPerElement(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

}  // namespace vqllm
