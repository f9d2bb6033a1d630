#include "codegen/request.h"

#include "codegen/generate.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

Request Good() {
  Request request;
  request.format = ParseFormat("aqlm-2x8");
  request.n = 64;
  request.k = 64;
  request.gpu = ParseGpu("a100");
  return request;
}

std::string Message(const Request& request) {
  try {
    Generate(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Request, SizesBeyondReasonAreRefusedByName) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, INT64_MIN, INT64_MAX}) {
    Request request = Good();
    request.n = size;
    EXPECT_THAT(Message(request), testing::HasSubstr("n: found " + std::to_string(size)));
    request = Good();
    request.k = size;
    EXPECT_THAT(Message(request), testing::HasSubstr("k: found "));
    request = Good();
    request.m = size;
    EXPECT_THAT(Message(request), testing::HasSubstr("m: found "));
  }
  Request request = Good();
  request.m = 17;
  EXPECT_THAT(Message(request), testing::HasSubstr("allowed: 1 to 16"));
  request = Good();
  request.pins.split = -3;
  EXPECT_THAT(Message(request), testing::HasSubstr("split"));
}

TEST(Request, AFormatWhoseNameIsCodeNeverReachesTheText) {
  for (const char* name : {"x*/ int main(){} /*", "a\\nb", "\\u0000", "$(reboot)", "x\\\"y", "' ; rm"}) {
    const std::string json = fmt::format(
        R"({{"name":"{}","kind":"table","subvector":8,"entries":[256],"scope":{{"kind":"tensor"}}}})", name);
    EXPECT_THROW(ParseFormat(json), Error) << json;
    Request request = Good();
    request.format.name = name;  // and past the parser
    EXPECT_THAT(Message(request), testing::HasSubstr("name"));
  }
}

TEST(Request, NumbersOfAFormatAreRanges) {
  Request request = Good();
  request.format.entries = {1 << 30};
  EXPECT_THAT(Message(request), testing::HasSubstr("entries"));
  request = Good();
  request.format.subvector = -8;
  EXPECT_THAT(Message(request), testing::HasSubstr("subvector"));
}

TEST(Request, SharedMemoryStaysWithinEveryArch) {
  for (const char* gpu : {"a10", "a100", "rtx4090", "h100", "b200", "rtx5090"}) {
    for (const char* format : {"aqlm-2x8", "VQ<8,8,3>", "aqlm-1x16", "aqlm-3", "VQ<4,12,1>", "VQ<16,12,2>"}) {
      for (const Level level : {Level::kGc, Level::kSc, Level::kO1, Level::kO2, Level::kBest}) {
        Request request = Good();
        request.format = ParseFormat(format);
        request.gpu = ParseGpu(gpu);
        request.level = level;
        request.n = 4096;
        request.k = 4096;
        const PlanResult result = MakePlan(request, 1000000);
        EXPECT_LE(result.best.plan.shared_bytes, LimitsOf(request.gpu.arch).shared_block)
            << format << " " << gpu;
        for (const Candidate& other : result.runners_up) {
          ASSERT_LE(other.plan.shared_bytes, LimitsOf(request.gpu.arch).shared_block);
          ASSERT_GE(other.plan.min_blocks, 1);
        }
      }
    }
  }
}

TEST(Request, PinsAreKept) {
  Request request = Good();
  request.pins.warps_n = 8;
  request.pins.row_slots = 2;
  const Plan plan = MakePlan(request).best.plan;
  EXPECT_EQ(plan.warps_n, 8);
  EXPECT_EQ(plan.layout.row_slots, 2);
}

TEST(Request, ExplainNamesEveryTermAndSource) {
  const Request request = Good();
  const std::string text = Explain(request, MakePlan(request));
  for (const char* word : {"slack", "modelled", "runners-up", "compulsory", "estimate", "bound by"})
    EXPECT_THAT(text, testing::HasSubstr(word));
}

}  // namespace
}  // namespace vqllm
