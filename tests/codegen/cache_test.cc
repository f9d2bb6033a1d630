#include "codegen/cache.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;

std::string Source(int constant) {
  return fmt::format("extern \"C\" __global__ void f(int* a) {{ a[threadIdx.x] = {}; }}\n", constant);
}

class Cache : public testing::Test {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
  static int Entries(const fs::path& folder) {
    return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  test::TempDir temp_;
};

TEST_F(Cache, SecondCallIsAHitWithTheSameKernel) {
  const KernelCache cache(temp_ / "a b é");  // a space and a letter beyond ASCII
  const CachedKernel first = cache.Get(Source(1), "f.cu", {}, "{}");
  const CachedKernel second = cache.Get(Source(1), "f.cu", {}, "{}");
  EXPECT_FALSE(first.hit);
  EXPECT_TRUE(second.hit);
  EXPECT_EQ(first.note, "");
  EXPECT_EQ(first.kernel.ptx, second.kernel.ptx);
  EXPECT_EQ(first.kernel.cubin, second.kernel.cubin);
  ASSERT_EQ(second.kernel.kernels.size(), 1u);
  EXPECT_EQ(second.kernel.kernels[0].registers, first.kernel.kernels[0].registers);
  for (const char* file : {"kernel.cu", "plan.json", "resources.txt", "kernel.ptx", "kernel.cubin"})
    EXPECT_TRUE(fs::exists(second.folder / file)) << file;
  EXPECT_EQ(ReadTextFile(second.folder / "kernel.cu"), Source(1));
}

TEST_F(Cache, TextArchFlagsAndVersionAreAllInTheKey) {
  const KernelCache cache(temp_.path());
  cache.Get(Source(1), "f.cu", {}, "");
  // An older time on the file must not matter: the key is the content.
  EXPECT_FALSE(cache.Get(Source(2), "f.cu", {}, "").hit);
  EXPECT_FALSE(cache.Get(Source(1), "f.cu", {.arch = "sm_90"}, "").hit);
  EXPECT_FALSE(cache.Get(Source(1), "f.cu", {.flags = {"-DX=1"}}, "").hit);
  EXPECT_EQ(Entries(temp_.path()), 4);
  EXPECT_NE(KernelCache::Key("x", {}, "nvrtc 12.4"), KernelCache::Key("x", {}, "nvrtc 13.0"));
  EXPECT_NE(KernelCache::Key("x", {.flags = {"-a", "-b"}}, "v"),
            KernelCache::Key("x", {.flags = {"-a -b"}}, "v"));
  EXPECT_THAT(cache.Get(Source(1), "f.cu", {.arch = "sm_90"}, "").kernel.ptx, testing::HasSubstr("sm_90"));
}

TEST_F(Cache, DamagedEntriesAreRebuilt) {
  const KernelCache cache(temp_.path());
  const CachedKernel first = cache.Get(Source(1), "f.cu", {}, "");
  for (const char* file : {"kernel.cubin", "kernel.ptx", "resources.txt", "kernel.cu", "manifest"}) {
    fs::resize_file(first.folder / file, fs::file_size(first.folder / file) / 2);
    const CachedKernel again = cache.Get(Source(1), "f.cu", {}, "");
    EXPECT_FALSE(again.hit) << file;
    EXPECT_EQ(again.kernel.cubin, first.kernel.cubin);
    EXPECT_TRUE(cache.Get(Source(1), "f.cu", {}, "").hit) << file;
    fs::remove(first.folder / file);
    EXPECT_FALSE(cache.Get(Source(1), "f.cu", {}, "").hit) << file;
  }
  std::string flipped = ReadTextFile(first.folder / "kernel.cubin");
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  WriteFileAtomically(first.folder / "kernel.cubin", flipped);
  EXPECT_FALSE(cache.Get(Source(1), "f.cu", {}, "").hit);
  EXPECT_EQ(Entries(temp_.path()), 1);  // nothing was left aside
}

TEST_F(Cache, AFolderThatCannotBeWrittenMeansNoCacheAndANote) {
  const fs::path file = temp_ / "file";
  WriteFileAtomically(file, "not a folder");
  const CachedKernel kernel = KernelCache(file / "cache").Get(Source(1), "f.cu", {}, "");
  EXPECT_FALSE(kernel.hit);
  EXPECT_FALSE(kernel.kernel.cubin.empty());
  EXPECT_THAT(kernel.note, testing::HasSubstr("without cache"));
  EXPECT_TRUE(kernel.folder.empty());
}

TEST_F(Cache, ReadOnlyFolderStillServesHits) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const KernelCache cache(temp_ / "c");
  cache.Get(Source(1), "f.cu", {}, "");
  fs::permissions(temp_ / "c", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_TRUE(cache.Get(Source(1), "f.cu", {}, "").hit);
  EXPECT_THAT(cache.Get(Source(2), "f.cu", {}, "").note, testing::HasSubstr("without cache"));
  fs::permissions(temp_ / "c", fs::perms::owner_all);
}

TEST_F(Cache, ProcessesMayRace) {
  const KernelCache cache(temp_ / "c");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        for (int constant = 0; constant < 3; ++constant) {
          const CachedKernel kernel = cache.Get(Source(constant), "f.cu", {}, "");
          if (kernel.kernel.cubin.empty() || !kernel.note.empty()) _exit(2);
        }
        _exit(0);
      } catch (...) {
        _exit(3);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Entries(temp_ / "c"), 3);
  for (int constant = 0; constant < 3; ++constant)
    EXPECT_TRUE(cache.Get(Source(constant), "f.cu", {}, "").hit);
}

TEST_F(Cache, TextThatDoesNotCompileLeavesNothing) {
  const KernelCache cache(temp_ / "c");
  EXPECT_THROW(cache.Get("wrong", "f.cu", {}, ""), Error);
  EXPECT_FALSE(fs::exists(temp_ / "c"));
}

}  // namespace
}  // namespace vqllm
