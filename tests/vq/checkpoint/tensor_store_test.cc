#include "vq/checkpoint/tensor_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/checkpoint/safetensors_writer.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// Writes a shard that holds the given names, each one float.
void WriteShard(const fs::path& path, const std::vector<std::string>& names) {
  SafetensorsWriter writer(path);
  for (const std::string& name : names) writer.Add(name, {1}, std::vector<float>{1.0f});
  writer.Finish();
}

void WriteIndex(const fs::path& folder, const std::string& weight_map) {
  WriteFileAtomically(folder / TensorStore::kIndexName,
                      R"({"metadata":{"total_size":12},"weight_map":{)" + weight_map + "}}");
}

std::string Refusal(const fs::path& folder) {
  try {
    TensorStore::OpenFolder(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Two shards and their index: a, b in the first, c in the second.
class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    WriteShard(dir_ / "model-00001-of-00002.safetensors", {"a", "b"});
    WriteShard(dir_ / "model-00002-of-00002.safetensors", {"c"});
    WriteIndex(dir_.path(), kMap);
  }
  static constexpr char kMap[] =
      R"("a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
      R"("c":"model-00002-of-00002.safetensors")";
  test::TempDir dir_;
};

TEST_F(Sharded, OpensAllTensors) {
  const TensorStore store = TensorStore::OpenFolder(dir_.path());
  EXPECT_THAT(store.Names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(ReadFloats(store.Get("c")), ElementsAre(1.0f));
  EXPECT_TRUE(store.notes().empty());
  EXPECT_EQ(store.metadata().at("format"), "pt");
}

TEST_F(Sharded, RefusesAnAbsentShardAndListsWhatItHeld) {
  fs::remove(dir_ / "model-00002-of-00002.safetensors");
  const std::string refusal = Refusal(dir_.path());
  EXPECT_THAT(refusal, HasSubstr("1 listed tensors are missing: 'c'"));
  EXPECT_THAT(refusal, HasSubstr("absent shards: 'model-00002-of-00002.safetensors'"));
}

TEST_F(Sharded, RefusesAShardThatLacksAListedTensor) {
  WriteShard(dir_ / "model-00001-of-00002.safetensors", {"a"});
  EXPECT_THAT(Refusal(dir_.path()), HasSubstr("1 listed tensors are missing: 'b'"));
}

TEST_F(Sharded, RefusesATensorInTwoShards) {
  WriteShard(dir_ / "model-00002-of-00002.safetensors", {"c", "b"});
  const std::string refusal = Refusal(dir_.path());
  EXPECT_THAT(refusal, HasSubstr("model-00002-of-00002.safetensors: 'b'"));
  EXPECT_THAT(refusal, HasSubstr("also in model-00001-of-00002.safetensors"));
}

TEST_F(Sharded, IgnoresAStrayShardWithANote) {
  WriteFileAtomically(dir_ / "model-00003-of-00002.safetensors", "not even a header");
  const TensorStore store = TensorStore::OpenFolder(dir_.path());
  EXPECT_THAT(store.Names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(store.notes(), ElementsAre(HasSubstr("model-00003-of-00002.safetensors")));
}

TEST_F(Sharded, IgnoresAnUnlistedTensorWithANote) {
  WriteShard(dir_ / "model-00002-of-00002.safetensors", {"c", "d"});
  const TensorStore store = TensorStore::OpenFolder(dir_.path());
  EXPECT_FALSE(store.Has("d"));
  EXPECT_THAT(store.notes(), ElementsAre(HasSubstr("'d'")));
}

TEST_F(Sharded, PrefersTheSingleFile) {
  WriteShard(dir_ / TensorStore::kSingleName, {"x"});
  const TensorStore store = TensorStore::OpenFolder(dir_.path());
  EXPECT_THAT(store.Names(), ElementsAre("x"));
  EXPECT_EQ(store.notes().size(), 2u);  // the index and the shards
}

TEST_F(Sharded, RefusesIndexesThatReachOutsideOrAreNoIndex) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "model.bin", ".safetensors", ""}) {
    WriteIndex(dir_.path(), fmt::format(R"("a":"{}")", name));
    EXPECT_THAT(Refusal(dir_.path()), HasSubstr("weight_map: found")) << name;
  }
  WriteIndex(dir_.path(), "");
  EXPECT_THAT(Refusal(dir_.path()), HasSubstr("weight_map is empty"));
  WriteIndex(dir_.path(), R"("a":1)");
  EXPECT_THAT(Refusal(dir_.path()), HasSubstr("'a'"));
  WriteFileAtomically(dir_ / TensorStore::kIndexName, R"({"weight_map":[]})");
  EXPECT_THAT(Refusal(dir_.path()), HasSubstr("a JSON object"));
}

TEST(TensorStore, RefusesAFolderWithoutWeights) {
  const test::TempDir dir;
  EXPECT_THAT(Refusal(dir.path()), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(Refusal(dir / "absent"), HasSubstr("not a folder"));
}

TEST(TensorStore, ListsAllMissingNamesAtOnce) {
  const test::TempDir dir;
  WriteShard(dir / TensorStore::kSingleName, {"a"});
  const TensorStore store = TensorStore::OpenFolder(dir.path());
  store.Require({"a"});
  try {
    store.Require({"x", "a", "y"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 tensors are missing: 'x', 'y'"));
  }
  EXPECT_THROW(store.Get("x"), Error);
}

TEST(TensorStore, TensorsOutliveTheStore) {
  const test::TempDir dir;
  WriteShard(dir / "m.safetensors", {"a"});
  const StoredTensor a = TensorStore::OpenFile(dir / "m.safetensors").Get("a");
  fs::remove(dir / "m.safetensors");
  EXPECT_THAT(ReadFloats(a), ElementsAre(1.0f));
}

TEST(TensorStore, ShardedAndSingleCheckpointsHoldTheSame) {
  VQLLM_NEED_DATA("stories260K/f32_sharded");
  const TensorStore one = TensorStore::OpenFolder(test::DataDir() / "stories260K" / "f32");
  const TensorStore two = TensorStore::OpenFolder(test::DataDir() / "stories260K" / "f32_sharded");
  ASSERT_EQ(one.Names(), two.Names());
  for (const std::string& name : one.Names()) EXPECT_EQ(ReadFloats(one.Get(name)), ReadFloats(two.Get(name)));
}

}  // namespace
}  // namespace vqllm
