#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace vqllm {

/// A regular expression of PCRE2 over Unicode, as tokenizers use them to split text. Safe to share between
/// threads. The work of one match is limited, so that a pattern which backtracks without end is an Error.
class Regex {
 public:
  /// The syntax is what PCRE2 and Oniguruma, which Hugging Face uses, have in common; "^" and "$" match at
  /// every line, as in Oniguruma. Throws Error "<where>: ..." where it does not compile or where the two
  /// disagree on its meaning.
  Regex(std::string_view pattern, std::string where);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// Walks the matches of one text from left to right.
  class Scan {
   public:
    /// `text` is valid UTF-8; both must outlive the scan.
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    /// False at the end. Throws Error where the limit is reached.
    bool Next();
    size_t begin() const { return begin_; }
    size_t end() const { return end_; }

   private:
    const Regex& regex_;
    std::string_view text_;
    void* data_;     // pcre2_match_data
    void* context_;  // pcre2_match_context
    size_t from_ = 0;
    size_t begin_ = 0;
    size_t end_ = 0;
  };

 private:
  void* code_;  // pcre2_code
  std::string where_;
};

}  // namespace vqllm
