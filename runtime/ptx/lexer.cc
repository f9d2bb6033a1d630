#include "runtime/ptx/lexer.h"

#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}
bool IsPunctuation(char c) {
  return std::string_view("{}[]()<>,;:@!|+-=*&").find(c) != std::string_view::npos;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : source_(source), name_(name) {}

  std::vector<Token> Run() {
    // NVRTC hands over the text with its final NUL.
    while (!source_.empty() && source_.back() == '\0') source_.remove_suffix(1);
    while (SkipSpace()) Next();
    tokens_.push_back({Token::Kind::kEnd, "end of file", line_});
    return std::move(tokens_);
  }

 private:
  char At(size_t offset) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }

  // False at the end of the text.
  bool SkipSpace() {
    while (position_ < source_.size()) {
      const char c = source_[position_];
      if (c == '\n') {
        ++line_;
        ++position_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
        ++position_;
      } else if (c == '/' && At(1) == '/') {
        while (position_ < source_.size() && source_[position_] != '\n') ++position_;
      } else if (c == '/' && At(1) == '*') {
        const int begin = line_;
        position_ += 2;
        while (!(At(0) == '*' && At(1) == '/')) {
          if (position_ >= source_.size()) Fail("{}:{}: comment without end", name_, begin);
          if (source_[position_++] == '\n') ++line_;
        }
        position_ += 2;
      } else {
        return true;
      }
    }
    return false;
  }

  void Push(Token::Kind kind, size_t begin) {
    tokens_.push_back({kind, source_.substr(begin, position_ - begin), line_});
  }

  void Next() {
    const size_t begin = position_;
    const char c = source_[position_];
    if (c == '"') {
      do {
        ++position_;
        if (position_ >= source_.size() || source_[position_] == '\n') {
          Fail("{}:{}: string without end", name_, line_);
        }
      } while (source_[position_] != '"');
      ++position_;
      Push(Token::Kind::kString, begin);
    } else if (IsDigit(c)) {
      // Also takes the dot and the exponent of a decimal float.
      while (IsWord(At(0)) || ((At(0) == '+' || At(0) == '-') && IsExponent(begin))) ++position_;
      Push(Token::Kind::kNumber, begin);
    } else if (IsWord(c)) {
      while (IsWord(At(0)) || (At(0) == ':' && At(1) == ':')) position_ += At(0) == ':' ? 2 : 1;
      PushWord(begin);
    } else if (IsPunctuation(c)) {
      ++position_;
      Push(Token::Kind::kPunctuation, begin);
    } else {
      Fail("{}:{}: byte 0x{:02x} is not part of PTX", name_, line_, static_cast<unsigned char>(c));
    }
  }

  bool IsExponent(size_t begin) const {
    const char before = source_[position_ - 1];
    const std::string_view text = source_.substr(begin, position_ - begin);
    return (before == 'e' || before == 'E') && text.find('.') != std::string_view::npos;
  }

  // One of the code generators writes ".reg.b32": two directives without a space.
  void PushWord(size_t begin) {
    constexpr std::string_view kReg = ".reg";
    const std::string_view word = source_.substr(begin, position_ - begin);
    if (word.starts_with(kReg) && word.size() > kReg.size() && word[kReg.size()] == '.') {
      tokens_.push_back({Token::Kind::kWord, word.substr(0, kReg.size()), line_});
      tokens_.push_back({Token::Kind::kWord, word.substr(kReg.size()), line_});
    } else {
      Push(Token::Kind::kWord, begin);
    }
  }

  std::string_view source_;
  std::string_view name_;
  size_t position_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Lex(std::string_view source, std::string_view name) { return Lexer(source, name).Run(); }

}  // namespace vqllm::ptx
