#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// The chat formats that are built in. A model's own Jinja template is not run; it is recognised by its
/// marks.
enum class ChatFormat {
  kChatMl,  ///< <|im_start|>role ... <|im_end|>: Qwen, SmolLM2 and many others
  kLlama2,  ///< [INST] <<SYS>> ... [/INST]; Mistral likewise
  kLlama3,  ///< <|start_header_id|>role<|end_header_id|> ... <|eot_id|>
};

/// The format whose marks are in a Jinja template. Throws Error "<where>: chat_template: ..." where there are
/// none.
ChatFormat DetectChatFormat(std::string_view chat_template, const std::string& where);
/// The same for the chat_template of a directory's tokenizer_config.json or its chat_template.jinja.
ChatFormat ReadChatFormat(const std::filesystem::path& folder);

/// The prompt that asks the assistant for its next message: to be encoded with special tokens parsed; BOS is
/// left to the encoder. Throws Error on an unknown role, and for kLlama2 where users and assistants do not
/// take turns, or the last message is not a user's.
std::string RenderChat(ChatFormat format, const std::vector<ChatMessage>& messages);

}  // namespace vqllm
