#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// `before(first, second) {`, broken between parameters where the line grows too long; empty ones are left
/// out.
std::string FunctionHead(std::string_view before, std::initializer_list<std::string> parameters);
std::string FunctionHead(std::string_view before, const std::vector<std::string>& parameters);

/// Those texts that are not empty, an empty line between.
std::string JoinTexts(std::initializer_list<std::string> texts);

/// The text without the lines `constexpr int name = ...;` whose name stands nowhere else in its code: layouts
/// define more than a kernel needs, and compilers warn of what nobody reads.
std::string DropUnusedConstants(std::string_view text);

/// Moves the comments that end neighbouring lines of code to one column, as clang-format does.
std::string AlignComments(std::string_view text);

}  // namespace vqllm
