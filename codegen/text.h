#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace vqllm {

/// A named field of a text: $name$ is replaced by the value.
struct TextField {
  TextField(std::string_view name_in, std::string_view value_in) : name(name_in), value(value_in) {}
  TextField(std::string_view name_in, const char* value_in) : name(name_in), value(value_in) {}
  TextField(std::string_view name_in, const std::string& value_in) : name(name_in), value(value_in) {}
  TextField(std::string_view name_in, int64_t value_in) : name(name_in), value(std::to_string(value_in)) {}
  TextField(std::string_view name_in, int value_in) : name(name_in), value(std::to_string(value_in)) {}
  std::string name;
  std::string value;
};
using TextFields = std::initializer_list<TextField>;

/// Writes source text that keeps its indentation: raw text of any indentation is moved to the current one, a
/// line that holds only a field takes as many lines as the value has, or none.
class TextWriter {
 public:
  /// Appends `raw`, with a first line break and the common indentation removed. Every $name$ must be a field.
  void Write(std::string_view raw, TextFields fields = {});
  /// An empty line, unless the text ends in one.
  void Gap();
  void Indent() { indent_ += 2; }
  void Dedent() { indent_ -= 2; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int indent_ = 0;
};

/// `raw` with the fields filled in and no other change than TextWriter's.
std::string FillText(std::string_view raw, TextFields fields);

}  // namespace vqllm
