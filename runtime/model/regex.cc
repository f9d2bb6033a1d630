#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/model/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "runtime/model/utf8.h"
#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr size_t kMaxPattern = 16384;  // bytes; the longest in use have about 1500
constexpr uint32_t kHeapLimitKib = 64 * 1024;

/// Steps that one match may take. Real splits step back over at most the run of spaces that they are in; the
/// constant lets short texts do some work.
uint32_t StepLimit(size_t text_size) {
  return static_cast<uint32_t>(std::min<size_t>(100'000 + 16 * text_size, 1u << 30));
}

/// Escapes that mean one thing to PCRE2 and another to Oniguruma, or that break the promise of whole
/// characters.
constexpr std::string_view kForeignEscapes = "hHRXKGCNOgkpPQEZA";

void CheckSyntax(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kMaxPattern) {
    Fail("{}: found a pattern of {} bytes, allowed: at most {}", where, pattern.size(), kMaxPattern);
  }
  if (pattern.find("(*") != std::string_view::npos || pattern.find("(?C") != std::string_view::npos) {
    Fail("{}: found a control verb or callout in the pattern, allowed: plain expressions", where);
  }
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    const char escaped = pattern[++i];
    const bool property =
        (escaped == 'p' || escaped == 'P') && i + 1 < pattern.size() && pattern[i + 1] == '{';
    if (!property && kForeignEscapes.find(escaped) != std::string_view::npos) {
      Fail("{}: found \\{} in the pattern, allowed: escapes that PCRE2 and Oniguruma read alike", where,
           escaped);
    }
  }
}

/// The pattern with \s spelled out as Unicode's White_Space, which it means to Oniguruma: PCRE2 counts
/// U+180E too. Classes within classes and intersections, which PCRE2 does not know, are refused.
std::string SpellOutSpaces(std::string_view pattern, const std::string& where) {
  constexpr std::string_view kSpaces =
      R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (in_class && (c == '[' || pattern.substr(i, 2) == "&&")) {
      Fail("{}: found a class within a class at byte {} of the pattern, allowed: plain classes", where, i);
    }
    if (c != '\\' || i + 1 == pattern.size()) {
      out += c;
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class) {
      out += kSpaces;
    } else if ((escaped == 's' || escaped == 'S') && !in_class) {
      out.append(escaped == 's' ? "[" : "[^").append(kSpaces).append("]");
    } else {
      out.append(1, c).append(1, escaped);
    }
  }
  return out;
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)) {
  CheckSyntax(pattern, where_);
  const std::string spelled = SpellOutSpaces(pattern, where_);
  int error = 0;
  size_t offset = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                        nullptr);
  if (code_ == nullptr) {
    char message[120] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    Fail("{}: found a pattern that is no regular expression at byte {} ({}), allowed: PCRE2 syntax", where_,
         offset, message);
  }
  // Where there is no JIT for this machine or pattern, the interpreter does the same work more slowly.
  pcre2_jit_compile(static_cast<pcre2_code*>(code_), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

Regex::Regex(Regex&& other) noexcept
    : code_(std::exchange(other.code_, nullptr)), where_(std::move(other.where_)) {}

Regex::Scan::Scan(const Regex& regex, std::string_view text)
    : regex_(regex),
      text_(text),
      data_(pcre2_match_data_create_from_pattern(static_cast<pcre2_code*>(regex.code_), nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  VQLLM_CHECK(data_ != nullptr && context_ != nullptr, "out of memory");
  auto* context = static_cast<pcre2_match_context*>(context_);
  pcre2_set_match_limit(context, StepLimit(text.size()));
  pcre2_set_depth_limit(context, StepLimit(text.size()));
  pcre2_set_heap_limit(context, kHeapLimitKib);
}

Regex::Scan::~Scan() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(data_));
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context_));
}

bool Regex::Scan::Next() {
  if (from_ > text_.size()) return false;
  auto* data = static_cast<pcre2_match_data*>(data_);
  const auto match = [&](uint32_t options) {
    // The text was checked once. Checking it in every call would make the scan quadratic.
    return pcre2_match(static_cast<pcre2_code*>(regex_.code_), reinterpret_cast<PCRE2_SPTR>(text_.data()),
                       text_.size(), from_, options | PCRE2_NO_UTF_CHECK, data,
                       static_cast<pcre2_match_context*>(context_));
  };
  int found = match(0);
  // JIT code has a small stack; the interpreter takes what it needs from the heap.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    char message[120] = {};
    pcre2_get_error_message(found, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    Fail("{}: the pattern gave up at byte {} of the text: {}", regex_.where_, from_, message);
  }
  const size_t* ends = pcre2_get_ovector_pointer(data);
  begin_ = ends[0];
  end_ = ends[1];
  // An empty match must not be found again; the next one begins a character later.
  from_ = end_ > begin_ ? end_ : end_ < text_.size() ? end_ + Utf8Size(text_[end_]) : text_.size() + 1;
  return true;
}

}  // namespace vqllm
