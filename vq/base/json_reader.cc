#include "vq/base/json_reader.h"

#include <algorithm>
#include <cmath>

#include "vq/base/error.h"

namespace vqllm {

using nlohmann::json;

namespace {

constexpr int kMaxDepth = 64;

/// A value in at most 60 characters of plain ASCII, for an error message.
std::string Excerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

json ParseJson(std::string_view text, std::string_view where) {
  bool too_deep = false;
  const auto watch_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) too_deep = true;
    return !too_deep;
  };
  try {
    json parsed = json::parse(text, watch_depth);
    if (too_deep) Fail("{}: JSON nested deeper than {}", where, kMaxDepth);
    return parsed;
  } catch (const json::exception& error) {
    std::string what = error.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    Fail("{}: not valid JSON: {}", where, what.substr(0, 200));
  }
}

JsonReader::JsonReader(const json& value, std::string where) : json_(&value), where_(std::move(where)) {
  if (!value.is_object()) Fail("{}: found {}, allowed: a JSON object", where_, Excerpt(value));
}

bool JsonReader::Has(std::string_view field) const {
  const auto found = json_->find(field);
  return found != json_->end() && !found->is_null();
}

const json& JsonReader::Raw(std::string_view field) const {
  const auto found = json_->find(field);
  if (found == json_->end()) Fail("{}: {}: missing", where_, field);
  return *found;
}

void JsonReader::Refuse(std::string_view field, std::string_view allowed) const {
  Fail("{}: {}: found {}, allowed: {}", where_, field, Excerpt(Raw(field)), allowed);
}

int64_t JsonReader::Int(std::string_view field, int64_t low, int64_t high) const {
  const json& value = Raw(field);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                               : value.is_number_integer();
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    Refuse(field, fmt::format("a whole number from {} to {}", low, high));
  }
  return value.get<int64_t>();
}

int64_t JsonReader::IntOr(std::string_view field, int64_t low, int64_t high, int64_t otherwise) const {
  return Has(field) ? Int(field, low, high) : otherwise;
}

double JsonReader::Number(std::string_view field, double low, double high) const {
  const json& value = Raw(field);
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= low && number <= high)) Refuse(field, fmt::format("a number from {} to {}", low, high));
  return number;
}

double JsonReader::NumberOr(std::string_view field, double low, double high, double otherwise) const {
  return Has(field) ? Number(field, low, high) : otherwise;
}

bool JsonReader::BoolOr(std::string_view field, bool otherwise) const {
  if (!Has(field)) return otherwise;
  if (!Raw(field).is_boolean()) Refuse(field, "true or false");
  return Raw(field).get<bool>();
}

std::string JsonReader::String(std::string_view field) const {
  if (!Raw(field).is_string()) Refuse(field, "a string");
  return Raw(field).get<std::string>();
}

std::string JsonReader::StringOr(std::string_view field, std::string_view otherwise) const {
  return Has(field) ? String(field) : std::string(otherwise);
}

int JsonReader::Choice(std::string_view field, std::initializer_list<std::string_view> allowed) const {
  const json& value = Raw(field);
  if (value.is_string()) {
    const auto found = std::find(allowed.begin(), allowed.end(), value.get_ref<const std::string&>());
    if (found != allowed.end()) return static_cast<int>(found - allowed.begin());
  }
  Refuse(field, fmt::format("{}", fmt::join(allowed, ", ")));
}

std::vector<int64_t> JsonReader::Ints(std::string_view field, int64_t low, int64_t high) const {
  const json& value = Raw(field);
  if (!value.is_array()) return {Int(field, low, high)};
  std::vector<int64_t> result;
  for (const json& item : value) {
    const bool good = item.is_number_integer() &&
                      !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX) &&
                      item.get<int64_t>() >= low && item.get<int64_t>() <= high;
    if (!good) Refuse(field, fmt::format("whole numbers from {} to {}", low, high));
    result.push_back(item.get<int64_t>());
  }
  return result;
}

JsonReader JsonReader::Object(std::string_view field) const {
  return JsonReader(Raw(field), fmt::format("{}: {}", where_, field));
}

void JsonReader::AllowOnly(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : json_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      Fail("{}: unknown field {}, allowed: {}", where_, Excerpt(json(key)), fmt::join(known, ", "));
    }
  }
}

}  // namespace vqllm
