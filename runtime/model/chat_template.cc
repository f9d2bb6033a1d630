#include "runtime/model/chat_template.h"

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace {

constexpr uint64_t kMaxFile = uint64_t{64} << 20;

void CheckRoles(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) Fail("chat: found no message, allowed: at least 1");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      Fail("chat: role: found \"{}\", allowed: system, user, assistant", message.role);
    }
  }
}

std::string RenderChatMl(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const auto& [role, content] : messages)
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
  return text + "<|im_start|>assistant\n";
}

std::string Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin));
}

std::string RenderLlama3(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const auto& [role, content] : messages) {
    text += fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, Trimmed(content));
  }
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

/// Each turn after the first begins with a BOS of its own, as in training.
std::string RenderLlama2(const std::vector<ChatMessage>& messages) {
  size_t at = 0;
  std::string system;
  if (messages[0].role == "system") {
    system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", messages[0].content);
    ++at;
  }
  std::string text;
  for (size_t turn = 0; at < messages.size(); ++at, ++turn) {
    const auto& [role, content] = messages[at];
    if (role != (turn % 2 == 0 ? "user" : "assistant")) {
      Fail("chat: message {}: found role {}, allowed: user and assistant in turns", at, role);
    }
    if (turn % 2 == 0) {
      text += fmt::format("{}[INST] {}{} [/INST]", turn == 0 ? "" : "<s>", turn == 0 ? system : "",
                          Trimmed(content));
    } else {
      text += fmt::format(" {} </s>", Trimmed(content));
    }
  }
  if (messages.back().role != "user")
    Fail("chat: found no question at the end, allowed: a user's message last");
  return text;
}

}  // namespace

ChatFormat DetectChatFormat(std::string_view chat_template, const std::string& where) {
  const auto has = [&](std::string_view mark) { return chat_template.find(mark) != std::string_view::npos; };
  if (has("<|start_header_id|>")) return ChatFormat::kLlama3;
  if (has("<|im_start|>")) return ChatFormat::kChatMl;
  if (has("[INST]")) return ChatFormat::kLlama2;
  Fail("{}: chat_template: found none of the known marks, allowed: ChatML, Llama 2, Llama 3", where);
}

ChatFormat ReadChatFormat(const std::filesystem::path& folder) {
  const auto jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja)) return DetectChatFormat(ReadTextFile(jinja, kMaxFile), jinja.string());
  const auto path = folder / "tokenizer_config.json";
  const nlohmann::json parsed = ParseJson(ReadTextFile(path, kMaxFile), path.string());
  return DetectChatFormat(JsonReader(parsed, path.string()).String("chat_template"), path.string());
}

std::string RenderChat(ChatFormat format, const std::vector<ChatMessage>& messages) {
  CheckRoles(messages);
  switch (format) {
    case ChatFormat::kChatMl:
      return RenderChatMl(messages);
    case ChatFormat::kLlama2:
      return RenderLlama2(messages);
    case ChatFormat::kLlama3:
      break;
  }
  return RenderLlama3(messages);
}

}  // namespace vqllm
