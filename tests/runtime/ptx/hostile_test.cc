#include <bit>

#include "tests/runtime/ptx/support.h"
#include "vq/base/rng.h"

/// PTX that is malformed or means harm: an Error that names the place, never a crash, a hang or the memory of
/// the machine; and launches that a driver would refuse.
namespace vqllm::ptx::test {
namespace {

std::string Body(const std::string& body) {
  return ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n" + body + "\nret;\n}\n";
}

TEST(Hostile, MalformedTextIsAnErrorWithItsLine) {
  const std::vector<std::string> texts = {
      "garbage",
      ".version 8.0\n.target sm_80\n.address_size 32\n",
      Body("/* no end"),
      Body("\x01"),
      ".visible .entry k(",
      ".visible .entry k()\n{\n",
      ".visible .entry k()\n{\n.reg .b32 %r<",
      Body(".reg .b32 %r<99999999999999999999>;"),
      Body(".reg .b32 %r<1000000>;"),
      Body(".reg .b128 %q<2>;"),
      Body(".reg .b32 %r<4>;\nadd.u32 %r1, %r2,;"),
      Body(".reg .b32 %r<4>;\nadd.u32 %r1 %r2, %r3;"),
      Body(".reg .b32 %r<4>;\nmov.u32 %r1, 0x;"),
      Body(".reg .b32 %r<4>;\nmov.u32 %r1, 0x1ffffffffffffffff;"),
      Body(".reg .f32 %f<4>;\nmov.f32 %f1, 0f3f8;"),
      Body(".reg .b32 %r<4>;\nld.shared.u32 %r1, [%r2+99999999999999999999];"),
      Body(".reg .b32 %r<4>;\nmov.b32 {{%r1}}, %r2;"),
      Body("bra L;"),
      Body("L:\nL:\nbra L;"),
      Body(".local .align 3 .b8 x[4];"),
      Body(".local .b8 x[600000];"),
      Body(".local .b8 x[];"),
      ".global .b8 x[4] = {1, 2, 3, 4, 5};",
      ".global .b8 x[4] = {1, 2,",
      ".global .b8 x[1000000000][1000000000];",
      ".global .b64 x[1] = {y};",
      ".const .b8 x[1000000];",
      ".global .pred x;",
      ".func f() { call f; ret; }",
      ".func f();\n.func g() { call f; ret; }\n.func f() { call g; ret; }\n",
      ".func f();\n.func f() { ret; }\n.func f() { ret; }\n",
      Body("call undefined_function;"),
      ".func (.param .b32 r) f(.param .b32 a) { ret; }\n" + Body("call f;"),
      Body(std::string(100, '{')),
      Body(".reg .b32 %r<4>;\nTS: .branchtargets A;\nbrx.idx %r1, TS;"),
      std::string("\0\0\0", 3) + "x",
  };
  for (const std::string& text : texts) EXPECT_THROW(Module::Parse(text), Error) << text.substr(0, 100);
}

TEST(Hostile, EveryPrefixAndManyDamagedCopiesOfAKernelEndInAnErrorOrRun) {
  const std::string text = OneWarp(
      "ld.global.v2.u32 {%r2, %r3}, [%l1];\nsetp.lt.u32 %p1, %r0, 5;\n@%p1 bra A;\nshfl.sync.bfly.b32 %r4, "
      "%r2, 1, 31, "
      "-1;\nA:\nbar.sync 0;\nfma.rn.f16x2 %r1, %r2, %r3, %r4;\n",
      1);
  const auto run = [](const std::string& ptx) {
    try {
      const Module module = Module::Parse(ptx);
      if (module.Kernels().empty() || module.Kernels()[0].parameter_bytes != std::vector<uint32_t>{8, 8})
        return;
      Memory memory;
      const uint64_t out = memory.Allocate(128, "out");
      const uint64_t in = memory.Allocate(64, "in");
      Launch(memory, module, module.Kernels()[0].name, {1}, {32}, 0, Args(out, in),
             {.instruction_budget = 10000});
    } catch (const Error&) {
    }
  };
  for (size_t n = 0; n < text.size(); ++n) run(text.substr(0, n));
  Rng rng(11);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    for (int k = 0; k < 3; ++k) damaged[rng.Below(damaged.size())] = static_cast<char>(32 + rng.Below(96));
    run(damaged);
  }
}

TEST(Hostile, HugeCountsStayWithinBounds) {
  std::string many;
  for (int i = 0; i < 20000; ++i) many += fmt::format("L{}:\n@%p1 bra L{};\n", i, (i * 7919) % 20000);
  EXPECT_NO_THROW(Module::Parse(Body(".reg .pred %p<2>;\n.reg .b32 %r<100000>;\n" + many)));
  EXPECT_THROW(Memory(1000).Allocate(1001, "x"), Error);
  Memory memory(1 << 20);
  const Module module =
      Module::Parse(".global .b8 big[100000000];\n" + Body(".reg .b64 %l<2>;\nmov.u64 %l1, big;"));
  EXPECT_THROW(Launch(memory, module, "k", {1}, {1}, 0, {}), Error);
}

TEST(Hostile, LaunchesThatADriverWouldRefuse) {
  const Module module = Module::Parse(
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n)\n.maxntid "
      "64\n{\nret;\n}\n"
      ".visible .entry fixed()\n.reqntid 32, 2\n{\nret;\n}\n");
  Memory memory;
  const uint32_t n = 1;
  const auto launch = [&](std::string_view name, Dim3 grid, Dim3 block, uint32_t shared, int workers = 1) {
    if (name == "fixed") return Launch(memory, module, name, grid, block, shared, {}, {.workers = workers});
    return Launch(memory, module, name, grid, block, shared, Args(n), {.workers = workers});
  };
  EXPECT_TRUE(launch("k", {2}, {64}, 0).completed);
  EXPECT_TRUE(launch("fixed", {2}, {32, 2}, 0).completed);
  EXPECT_THROW(launch("nothing", {1}, {1}, 0), Error);
  EXPECT_THROW(launch("k", {0}, {1}, 0), Error);
  EXPECT_THROW(launch("k", {1}, {0}, 0), Error);
  EXPECT_THROW(launch("k", {1, 70000}, {1}, 0), Error);
  EXPECT_THROW(launch("k", {1}, {65}, 0), Error);
  EXPECT_THROW(launch("fixed", {1}, {64}, 0), Error);
  EXPECT_THROW(launch("k", {1}, {1}, 300000), Error);
  EXPECT_THROW(launch("k", {1}, {1}, 0xffffffffu), Error);
  EXPECT_THROW(launch("k", {1}, {1}, 0, 0), Error);
  EXPECT_THROW(Launch(memory, module, "k", {1}, {1}, 0, {}), Error);
  try {
    launch("nothing", {1}, {1}, 0);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "PTX: kernel: found 'nothing', allowed: k, fixed");
  }
}

TEST(Hostile, MemoryNamesTheAllocationInItsErrors) {
  Memory memory;
  const uint64_t a = memory.Allocate(100, "weights");
  const uint32_t word = 5;
  EXPECT_NO_THROW(memory.CopyIn(a + 96, &word, 4));
  try {
    memory.CopyIn(a + 97, &word, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "copy to device: 4 bytes at offset 97 of 'weights', allowed: up to its 100 bytes");
  }
  EXPECT_THROW(memory.Free(a + 1), Error);
  memory.Free(a);
  EXPECT_THROW(memory.CopyIn(a, &word, 4), Error);
  EXPECT_THROW(memory.Free(a), Error);
  EXPECT_EQ(memory.allocated_bytes(), 0u);
}

}  // namespace
}  // namespace vqllm::ptx::test
