#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

/// Parses JSON. Throws Error that names `where` (a file, an option) and the byte at which it stopped. Nesting
/// deeper than 64 is refused: a hostile file must not overflow the stack.
nlohmann::json ParseJson(std::string_view text, std::string_view where);

/// Checked access to the fields of a JSON object. Every error names the place, the field, what was found and
/// what is allowed.
class JsonReader {
 public:
  /// `json` must outlive the reader; `where` is what errors begin with, such as "config.json". Throws unless
  /// it is an object.
  JsonReader(const nlohmann::json& json, std::string where);

  /// True where the field is there and is not null.
  bool Has(std::string_view field) const;
  /// A whole number in [low, high]. Fractions, strings and numbers out of range are refused.
  int64_t Int(std::string_view field, int64_t low, int64_t high) const;
  int64_t IntOr(std::string_view field, int64_t low, int64_t high, int64_t otherwise) const;
  /// A finite number in [low, high].
  double Number(std::string_view field, double low, double high) const;
  double NumberOr(std::string_view field, double low, double high, double otherwise) const;
  bool BoolOr(std::string_view field, bool otherwise) const;
  std::string String(std::string_view field) const;
  std::string StringOr(std::string_view field, std::string_view otherwise) const;
  /// The position of the string in `allowed`.
  int Choice(std::string_view field, std::initializer_list<std::string_view> allowed) const;
  /// A list of whole numbers in [low, high]; a single number counts as a list of one.
  std::vector<int64_t> Ints(std::string_view field, int64_t low, int64_t high) const;
  JsonReader Object(std::string_view field) const;
  const nlohmann::json& Raw(std::string_view field) const;
  /// Refuses every field that is not in `known`.
  void AllowOnly(std::initializer_list<std::string_view> known) const;

  const std::string& where() const { return where_; }
  const nlohmann::json& value() const { return *json_; }
  /// Throws Error "<where>: <field>: found <value>, allowed: <allowed>".
  [[noreturn]] void Refuse(std::string_view field, std::string_view allowed) const;

 private:
  const nlohmann::json* json_;
  std::string where_;
};

}  // namespace vqllm
