#include "codegen/text.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "vq/base/check.h"

namespace vqllm {
namespace {

constexpr size_t kLineColumns = 110;  // of emitted code

std::vector<std::string> Lines(std::string_view raw) {
  std::vector<std::string> lines;
  if (raw.starts_with('\n')) raw.remove_prefix(1);
  while (!raw.empty()) {
    const size_t end = raw.find('\n');
    std::string line(raw.substr(0, end));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    lines.push_back(std::move(line));
    raw = end == std::string_view::npos ? std::string_view() : raw.substr(end + 1);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

size_t CommonIndent(const std::vector<std::string>& lines) {
  size_t common = std::string::npos;
  for (const std::string& line : lines) {
    if (!line.empty()) common = std::min(common, line.find_first_not_of(' '));
  }
  return common == std::string::npos ? 0 : common;
}

const std::string& Value(std::string_view name, TextFields fields) {
  for (const TextField& field : fields) {
    if (field.name == name) return field.value;
  }
  VQLLM_CHECK(false, "no field {}", name);
}

std::string FillLine(const std::string& line, TextFields fields) {
  std::string filled;
  size_t at = 0;
  while (true) {
    const size_t open = line.find('$', at);
    if (open == std::string::npos) break;
    const size_t close = line.find('$', open + 1);
    VQLLM_CHECK(close != std::string::npos, "field without end: {}", line);
    filled += line.substr(at, open - at) + Value(line.substr(open + 1, close - open - 1), fields);
    at = close + 1;
  }
  return filled + line.substr(at);
}

/// The name where the line is one field and nothing else.
std::string_view OnlyField(std::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  if (first == std::string_view::npos || line[first] != '$' || line.back() != '$') return {};
  const std::string_view name = line.substr(first + 1, line.size() - first - 2);
  return name.find('$') == std::string_view::npos ? name : std::string_view();
}

void Append(std::string_view raw, TextFields fields, size_t indent, std::string& out) {
  const std::vector<std::string> lines = Lines(raw);
  const size_t common = CommonIndent(lines);
  for (const std::string& line : lines) {
    if (line.empty()) {
      out += '\n';
      continue;
    }
    const std::string_view field = OnlyField(line);
    if (!field.empty()) {
      const std::string& value = Value(field, fields);
      if (!value.empty()) Append(value, {}, indent + line.find_first_not_of(' ') - common, out);
      continue;
    }
    out += std::string(indent, ' ') + FillLine(line.substr(common), fields) + '\n';
  }
}

}  // namespace

void TextWriter::Write(std::string_view raw, TextFields fields) {
  Append(raw, fields, static_cast<size_t>(indent_), text_);
}

void TextWriter::Gap() {
  if (!text_.empty() && !text_.ends_with("\n\n")) text_ += '\n';
}

std::string FunctionHead(std::string_view before, const std::vector<std::string>& parameters) {
  const std::string indent(before.size() + 1, ' ');
  std::string text;
  std::string line = std::string(before) + "(";
  bool first = true;
  for (const std::string& parameter : parameters) {
    if (parameter.empty()) continue;
    if (!first) line += ",";
    if (!first && line.size() + 1 + parameter.size() + 3 > kLineColumns) {
      text += line + "\n";
      line = indent;
    } else if (!first) {
      line += " ";
    }
    line += parameter;
    first = false;
  }
  return text + line + ") {\n";
}

std::string FunctionHead(std::string_view before, std::initializer_list<std::string> parameters) {
  return FunctionHead(before, std::vector<std::string>(parameters));
}

std::string JoinTexts(std::initializer_list<std::string> texts) {
  std::string joined;
  for (const std::string& text : texts) {
    if (!joined.empty() && !text.empty()) joined += '\n';
    joined += text;
  }
  return joined;
}

std::string DropUnusedConstants(std::string_view text) {
  constexpr std::string_view kStart = "constexpr int ";
  std::vector<std::string> lines = Lines(text);
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  while (true) {
    std::map<std::string, int, std::less<>> uses;
    for (const std::string& line : lines) {
      const std::string_view code = std::string_view(line).substr(0, line.find("//"));
      for (size_t at = 0; at < code.size();) {
        size_t end = at;
        while (end < code.size() && is_word(code[end])) ++end;
        if (end > at) ++uses[std::string(code.substr(at, end - at))];
        at = end + 1;
      }
    }
    const size_t dropped = std::erase_if(lines, [&](const std::string& line) {
      if (!line.starts_with(kStart)) return false;
      return uses[line.substr(kStart.size(), line.find(' ', kStart.size()) - kStart.size())] == 1;
    });
    if (dropped == 0) break;
  }
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

std::string AlignComments(std::string_view text) {
  std::vector<std::string> lines = Lines(text);
  /// Where the comment behind a line's code begins, and where the code ends; npos without either.
  const auto parts = [](const std::string& line) {
    const size_t comment = line.find(" // ");
    const size_t code = comment == std::string::npos ? comment : line.find_last_not_of(' ', comment);
    return code == std::string::npos ? std::pair(code, code) : std::pair(comment + 1, code + 1);
  };
  for (size_t first = 0; first < lines.size();) {
    size_t last = first;
    size_t column = 0;
    for (; last < lines.size() && parts(lines[last]).first != std::string::npos; ++last)
      column = std::max(column, parts(lines[last]).second + 2);
    for (size_t i = first; i < last; ++i) {
      const auto [comment, code] = parts(lines[i]);
      lines[i] = lines[i].substr(0, code) + std::string(column - code, ' ') + lines[i].substr(comment);
    }
    first = last + 1;
  }
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

std::string FillText(std::string_view raw, TextFields fields) {
  std::string out;
  Append(raw, fields, 0, out);
  return out;
}

}  // namespace vqllm
