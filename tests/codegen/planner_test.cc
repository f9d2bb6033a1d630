#include "codegen/planner.h"

#include "vq/base/error.h"

namespace vqllm {
namespace {

Request Wanted(OpKind op, const char* format, int m, int n, int k, const char* gpu,
               Level level = Level::kBest) {
  Request request;
  request.op = op;
  request.format = ParseFormat(format);
  request.m = m;
  request.n = n;
  request.k = k;
  request.gpu = ParseGpu(gpu);
  request.level = level;
  return request;
}

/// Of the cheapest plan, which may be the first runner-up of one with fewer flaws.
double Cost(const PlanResult& result) {
  const auto cost = [](const Candidate& candidate) {
    return candidate.time.lower_us + 0.1 * candidate.time.upper_us;
  };
  return std::min(cost(result.best),
                  result.runners_up.empty() ? cost(result.best) : cost(result.runners_up[0]));
}

TEST(Planner, DescentFindsWhatAllCombinationsHave) {
  const Request requests[] = {Wanted(OpKind::kGemv, "gptvq-2", 1, 4096, 4096, "h100"),
                              Wanted(OpKind::kGemv, "int4-g128", 1, 4096, 11008, "a100"),
                              Wanted(OpKind::kGemv, "aqlm-3", 1, 4096, 4096, "rtx4090"),
                              Wanted(OpKind::kGemv, "int2-g64", 16, 4096, 4096, "h100"),
                              Wanted(OpKind::kGemm, "int4-g128", 64, 4096, 4096, "h100"),
                              Wanted(OpKind::kGemm, "fp16", 1024, 4096, 4096, "rtx4090"),
                              Wanted(OpKind::kGemm, "aqlm-3", 64, 4096, 4096, "a100", Level::kO4),
                              Wanted(OpKind::kDequant, "quip-4", 1, 4096, 4096, "b200")};
  for (const Request& request : requests) {
    const PlanResult found = MakePlan(request, 1);
    const PlanResult all = MakePlan(request, 1, Search::kAll);
    EXPECT_LE(Cost(found), 1.03 * Cost(all)) << request.format.name << " m " << request.m;
    EXPECT_LT(found.considered, all.considered) << request.format.name;
  }
}

// Codes, codebooks once, activations, outputs.
TEST(Planner, BestMovesLittleMoreThanTheCompulsoryBytes) {
  for (const char* format :
       {"int4-g128", "int8-g128", "fp16", "quip-2", "quip-4", "aqlm-2x8", "aqlm-3", "gptvq-2"}) {
    for (const int k : {4096, 11008}) {
      for (const char* gpu : {"a100", "rtx4090", "h100"}) {
        const Request request = Wanted(OpKind::kGemv, format, 1, 4096, k, gpu);
        const Candidate best = MakePlan(request, 0).best;
        EXPECT_LE(best.counters.DramBytes(request.gpu), 1.05 * best.counters.compulsory_bytes)
            << format << " " << k << " " << gpu;
      }
    }
  }
}

// Where 256 entries fit with a bank for every lane, lookups wait for no other. Lanes that look up products of
// their own codes in one table cannot have that: such a plan is
// taken only where its wavefronts, conflicts and all, are fewer than those of decoding without any.
TEST(Planner, BestAvoidsBankConflicts) {
  for (const char* format : {"quip-2", "quip-4", "aqlm-2x8", "gptvq-2", "VQ<2,4,1>"}) {
    for (const char* gpu : {"a100", "rtx4090", "h100"}) {
      for (const auto& [m, k] : {std::pair{1, 4096}, {1, 11008}, {16, 4096}}) {
        const Request request = Wanted(OpKind::kGemv, format, m, 4096, k, gpu);
        const Candidate best = MakePlan(request, 0).best;
        if (best.counters.SharedWavefronts() <= 1.05 * best.counters.SharedWavefrontsIdeal()) continue;
        EXPECT_EQ(best.plan.compute, Compute::kTable) << format << " m " << m << " k " << k << " " << gpu;
        Request decoding = request;
        decoding.pins.compute = Compute::kFma;
        EXPECT_LT(best.counters.SharedWavefronts(),
                  MakePlan(decoding, 0).best.counters.SharedWavefrontsIdeal())
            << format << " k " << k << " " << gpu;
      }
    }
  }
}

// A few tokens on int4 stay at the limit of DRAM, more at that of the tensor cores; with the layers of a 7B
// model. 64 tokens on an H100 are the exception: the sums of the splits and the activations that each block
// reads anew, both through L2, take a fifth longer than the products.
TEST(Planner, Int4IsAStrongOpponent) {
  for (const char* gpu : {"a100", "rtx4090", "h100"}) {
    for (const auto& [n, k] : {std::pair{4096, 4096}, {4096, 11008}, {11008, 4096}}) {
      for (const int m : {1, 16, 32, 64}) {
        const OpKind op = m <= 16 ? OpKind::kGemv : OpKind::kGemm;
        const ModelledTime time = MakePlan(Wanted(op, "int4-g128", m, n, k, gpu), 0).best.time;
        const bool l2 = m == 64 && std::string_view(gpu) == "h100";
        EXPECT_GE(m == 1 ? time.dram_us : std::max(time.dram_us, time.tensor_us),
                  (l2 ? 0.8 : 0.85) * time.lower_us)
            << gpu << " m " << m << " n " << n << " k " << k << ": " << time.bound;
      }
    }
  }
}

TEST(Planner, LevelsDifferAsInThePaper) {
  const auto plan = [](OpKind op, const char* format, int m, Level level) {
    return MakePlan(Wanted(op, format, m, 4096, 4096, "rtx4090", level), 0).best.plan;
  };
  const Plan gc = plan(OpKind::kGemv, "aqlm-3", 1, Level::kGc);
  const Plan sc = plan(OpKind::kGemm, "gptvq-2", 1024, Level::kSc);
  const Plan o1 = plan(OpKind::kGemv, "aqlm-3", 1, Level::kO1);
  const Plan o2 = plan(OpKind::kGemv, "gptvq-2", 1, Level::kO2);
  const Plan o4 = plan(OpKind::kGemm, "gptvq-2", 1024, Level::kO4);
  EXPECT_EQ(gc.stages[0].shared, 0);
  EXPECT_EQ(gc.split, 1);
  EXPECT_EQ(sc.stages[0].shared, 256);
  EXPECT_EQ(sc.fusion, Fusion::kShared);
  EXPECT_GT(o1.stages[0].shared, 0);
  EXPECT_EQ(o1.stages[0].held, 0);
  EXPECT_EQ(o2.stages[0].held, 32);
  EXPECT_EQ(o2.split, 1);
  EXPECT_EQ(o4.fusion, Fusion::kRegisterShuffle);
}

TEST(Planner, PinsOfTiersAreKept) {
  Request request = Wanted(OpKind::kGemv, "aqlm-3", 1, 512, 512, "a100", Level::kO2);
  request.pins.held = 16;
  request.pins.shared = 1000;
  const Plan plan = MakePlan(request, 0).best.plan;
  for (const StageTier& tier : plan.stages) {
    EXPECT_EQ(tier.held, 16);
    EXPECT_EQ(tier.shared, 1000);
  }
  request.pins.replicas = 3;
  EXPECT_THROW(MakePlan(request, 0), Error);
}

TEST(Planner, PinsComeFromJson) {
  const PlanPins pins = ParsePins(R"({"warps_n": 4, "split": 2, "compute": "dequant_fma"})", "pins");
  EXPECT_EQ(pins.warps_n, 4);
  EXPECT_EQ(pins.split, 2);
  EXPECT_EQ(pins.compute, Compute::kFma);
  EXPECT_FALSE(pins.fusion);
  EXPECT_THROW(ParsePins(R"({"warps": 4})", "pins"), Error);
  EXPECT_THROW(ParsePins(R"({"split": -1})", "pins"), Error);
  EXPECT_THROW(ParsePins(R"({"split": 1.5})", "pins"), Error);
  EXPECT_THROW(ParsePins(R"({"fusion": "all"})", "pins"), Error);
}

}  // namespace
}  // namespace vqllm
