#include "vq/checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/checkpoint/safetensors.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  writer.SetMetadata("note", "line\n\"quoted\" \xc3\xa4");
  writer.Add("floats", {2, 2}, std::vector<float>{1, 2, 3, 4});
  writer.Add("halves", {3}, std::vector<Half>{Half(0.5f), Half(-2.0f), Half(65504.0f)});
  writer.Add("bytes", StoredType::kU8, {3}, Bytes::Own(std::vector<uint8_t>{7, 8, 9}));
  writer.Add("lazy", StoredType::kI64, {1}, [] { return Bytes::Own(std::vector<int64_t>{-5}); });
  writer.Add("nothing", StoredType::kBF16, {0, 4}, Bytes());
  writer.Finish();

  const SafetensorsFile file(dir / "m.safetensors");
  EXPECT_EQ(file.metadata().at("note"), "line\n\"quoted\" \xc3\xa4");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_THAT(ReadFloats(*file.Find("floats")), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ReadFloats(*file.Find("halves")), ElementsAre(0.5f, -2.0f, 65504.0f));
  EXPECT_THAT(ReadInts<uint8_t>(*file.Find("bytes")), ElementsAre(7, 8, 9));
  EXPECT_THAT(ReadInts<int64_t>(*file.Find("lazy")), ElementsAre(-5));
  EXPECT_EQ(file.Find("nothing")->shape, (std::vector<int64_t>{0, 4}));
}

TEST(SafetensorsWriter, AlignsEveryTensorToItsElement) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  writer.Add("a", StoredType::kU8, {3}, Bytes::Own(std::vector<uint8_t>(3)));
  writer.Add("b", {1}, std::vector<float>{1});
  writer.Add("c", {1}, std::vector<Half>{Half(1.0f)});
  writer.Add("d", StoredType::kI64, {1}, Bytes::Own(std::vector<int64_t>{1}));
  writer.Finish();
  const SafetensorsFile file(dir / "m.safetensors");
  for (const StoredTensor& tensor : file.tensors()) {
    const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
    EXPECT_EQ(address % static_cast<uintptr_t>(BytesPerElement(tensor.type)), 0u) << tensor.name;
  }
}

TEST(SafetensorsWriter, TheOrderOfAddingDoesNotMatter) {
  const test::TempDir dir;
  for (const bool swap : {false, true}) {
    SafetensorsWriter writer(dir / (swap ? "b" : "a"));
    writer.Add(swap ? "y" : "x", {1}, std::vector<float>{swap ? 2.0f : 1.0f});
    writer.Add(swap ? "x" : "y", {1}, std::vector<float>{swap ? 1.0f : 2.0f});
    writer.Finish();
  }
  EXPECT_EQ(ReadTextFile(dir / "a"), ReadTextFile(dir / "b"));
}

TEST(SafetensorsWriter, AsksForOneTensorAtATime) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  int alive = 0;
  int most = 0;
  for (int i = 0; i < 4; ++i) {
    writer.Add(std::to_string(i), StoredType::kU8, {1}, [&] {
      most = std::max(most, ++alive);
      std::shared_ptr<const uint8_t> owner(new uint8_t(0), [&](const uint8_t* p) {
        delete p;
        --alive;
      });
      return Bytes(owner, owner.get(), 1);
    });
  }
  EXPECT_EQ(most, 0);
  writer.Finish();
  EXPECT_EQ(most, 1);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereATensorCannotBeMade) {
  const test::TempDir dir;
  WriteFileAtomically(dir / "m.safetensors", "old");
  {
    SafetensorsWriter writer(dir / "m.safetensors");
    writer.Add("a", {1}, std::vector<float>{1});
    writer.Add("b", StoredType::kU8, {1}, []() -> Bytes { Fail("no more disk"); });
    EXPECT_THROW(writer.Finish(), Error);
  }
  EXPECT_EQ(ReadTextFile(dir / "m.safetensors"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(SafetensorsWriter, NamesAFolderThatIsNotThere) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "absent/m.safetensors");
  EXPECT_THROW(writer.Finish(), Error);
}

}  // namespace
}  // namespace vqllm
