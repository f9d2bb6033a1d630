#include "runtime/model/chat_template.h"

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", "Hi "}, {"assistant", "Hello."}, {"user", "Bye"}};

TEST(ChatTemplate, RendersEachFormat) {
  EXPECT_EQ(
      RenderChat(ChatFormat::kChatMl, kTalk),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n"
      "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(RenderChat(ChatFormat::kLlama2, kTalk),
            "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(RenderChat(ChatFormat::kLlama3, {{"user", " Hi\n"}}),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, RefusesTalksThatTheFormatCannotHold) {
  EXPECT_THROW(RenderChat(ChatFormat::kChatMl, {}), Error);
  EXPECT_THROW(RenderChat(ChatFormat::kChatMl, {{"robot", "x"}}), Error);
  EXPECT_THROW(RenderChat(ChatFormat::kLlama2, {{"user", "x"}, {"user", "y"}}), Error);
  EXPECT_THROW(RenderChat(ChatFormat::kLlama2, {{"user", "x"}, {"assistant", "y"}}), Error);
  EXPECT_THROW(RenderChat(ChatFormat::kLlama2, {{"system", "x"}}), Error);
}

TEST(ChatTemplate, IsRecognisedByItsMarks) {
  EXPECT_EQ(DetectChatFormat("{{'<|im_start|>' + role}}", "x"), ChatFormat::kChatMl);
  EXPECT_EQ(DetectChatFormat("{{'[INST] ' + content}}", "x"), ChatFormat::kLlama2);
  EXPECT_EQ(DetectChatFormat("{{'<|start_header_id|>'}}", "x"), ChatFormat::kLlama3);
  EXPECT_THROW(DetectChatFormat("{{content}}", "x"), Error);
  const test::TempDir folder;
  EXPECT_THROW(ReadChatFormat(folder.path()), Error);
  WriteFileAtomically(folder / "tokenizer_config.json", R"({"chat_template": "[INST]"})");
  EXPECT_EQ(ReadChatFormat(folder.path()), ChatFormat::kLlama2);
  WriteFileAtomically(folder / "chat_template.jinja", "<|im_start|>");
  EXPECT_EQ(ReadChatFormat(folder.path()), ChatFormat::kChatMl);
}

}  // namespace
}  // namespace vqllm
