// Image files against Pillow's pixels (tests/reference/make_image_goldens.py), and files that are broken.
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "server/handler/request_bounds.h"
#include "server/image/decode.h"
#include "server/image/image_reader.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

using nlohmann::json;

// Versions of libjpeg round differently. With libjpeg-turbo 2.1 the pixels are those of Pillow, which has it too.
constexpr int kJpegDifference = 2;

std::string Folder() { return tests::TestdataFolder() + "_images/"; }

std::string File(const std::string& name) {
  std::ifstream file(Folder() + "files/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ImageDecodeTest, PixelsAreThoseOfPillow) {
  std::ifstream file(Folder() + "pixels.json");
  const json files = json::parse(file)["files"];
  ASSERT_GE(files.size(), 20u);
  for (const auto& [name, golden] : files.items()) {
    const std::string bytes = File(name);
    const absl::StatusOr<ImageHeader> header = ReadImageHeader(bytes);
    ASSERT_TRUE(header.ok()) << name << header.status();
    const absl::StatusOr<RgbImage> image = DecodeImage(bytes);
    ASSERT_TRUE(image.ok()) << name << image.status();
    EXPECT_EQ(image->width, golden["width"]) << name;
    EXPECT_EQ(image->height, golden["height"]) << name;
    EXPECT_EQ(header->pixels() * 3, image->pixels.size()) << name;
    EXPECT_GE(header->bytes, image->pixels.size()) << name;
    const std::string hex = golden["hex"];
    ASSERT_EQ(image->pixels.size(), hex.size() / 2) << name;
    const int most = name.find(".jpg") == std::string::npos ? 0 : kJpegDifference;
    for (size_t i = 0; i < image->pixels.size(); ++i) {
      ASSERT_NEAR(image->pixels[i], std::stoi(hex.substr(2 * i, 2), nullptr, 16), most) << name << ", byte " << i;
    }
  }
}

// Big-endian.
std::string Number(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

uint32_t Crc(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
  }
  return ~crc;
}

// A PNG with another header.
std::string Png(uint32_t width, uint32_t height, char depth, char colour) {
  const std::string header = "IHDR" + Number(width) + Number(height) + std::string({depth, colour, 0, 0, 0});
  return File("rgb.png").replace(12, 21, header + Number(Crc(header)));
}

// A JPEG with another size in its frame header.
std::string Jpeg(const std::string& name, uint32_t width, uint32_t height) {
  std::string bytes = File(name);
  const size_t frame = std::min(bytes.find("\xff\xc0"), bytes.find("\xff\xc2"));
  return bytes.replace(frame + 5, 4, Number(height << 16 | width));
}

std::string Message(const std::string& bytes) {
  const absl::StatusOr<RgbImage> image = DecodeImage(bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(image.status())) << image.status();
  return std::string(image.status().message());
}

TEST(ImageDecodeTest, BrokenFilesSayWhatIsWrong) {
  EXPECT_EQ(Message(""), "is empty; PNG and JPEG are served");
  EXPECT_EQ(Message("GIF89a"), "has the bytes of another format; PNG and JPEG are served");
  EXPECT_EQ(Message(File("rgb.png").substr(0, 20)), "is no PNG that can be read: the file ends early");
  EXPECT_EQ(Message(File("photo.png").substr(0, 1000)), "is no PNG that can be read: the file ends early");
  EXPECT_EQ(Message(File("rgb.jpg").substr(0, 700)), "is no JPEG that can be read: the file ends early");
  EXPECT_EQ(Message(File("progressive.jpg").substr(0, 900)), "is no JPEG that can be read: the file ends early");
  EXPECT_EQ(Message(Png(30000, 30000, 8, 2)),
            "has 30000 x 30000 pixels; at most 16384 a side and 33554432 in all are served");
  EXPECT_EQ(Message(Png(0x7fffffff, 0x7fffffff, 16, 6)), "is no PNG that can be read: its size is out of range");
  EXPECT_EQ(Message(Png(0x80000000, 1, 8, 2)), "is no PNG that can be read: invalid image width");
  EXPECT_EQ(Message(Png(0, 1, 8, 2)), "is no PNG that can be read: invalid image width");
  EXPECT_EQ(Message(Png(16384, 2049, 8, 2)),
            "has 16384 x 2049 pixels; at most 16384 a side and 33554432 in all are served");
  EXPECT_EQ(Message(Jpeg("rgb.jpg", 16385, 1)),
            "has 16385 x 1 pixels; at most 16384 a side and 33554432 in all are served");
  EXPECT_EQ(Message(Png(13, 9, 16, 0)), "is a gray PNG of 16 bits; 1, 2, 4 and 8 are served, and 16 with colours");
  EXPECT_EQ(Message(Jpeg("rgb.jpg", 16384, 2048)), "is no JPEG that can be read: the file ends early");
  EXPECT_EQ(Message(Png(4096, 4096, 8, 2)), "is no PNG that can be read: IDAT stream too short");
  std::string changed = File("photo.png");
  changed[changed.size() - 14] ^= 1;  // the checksum of the pixels
  EXPECT_EQ(Message(changed), "is no PNG that can be read: invalid chunk checksum");
  changed = File("photo.png");
  changed[changed.size() - 40] ^= 1;
  EXPECT_NE(Message(changed).find("is no PNG that can be read: "), std::string::npos);
}

// Bytes: the most memory that the process has had at once since the last call.
size_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmHWM:")) continue;
  std::ofstream("/proc/self/clear_refs") << 5;
  return std::stoul(line.substr(6)) << 10;
}

TEST(ImageDecodeTest, TextsAndProfilesAreNotUnpacked) {
  constexpr size_t kUnpacked = size_t{1} << 28;
  const std::string zeros(kUnpacked, '\0'), name("text\0\0", 6);
  uLongf size = compressBound(kUnpacked);
  std::string packed(size, '\0');
  ASSERT_EQ(compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(zeros.data()),
                      kUnpacked, 1),
            Z_OK);
  packed.resize(size);
  std::string bytes = File("rgb.png");
  const std::string chunk = "zTXt" + name + packed;
  bytes.insert(33, Number(static_cast<uint32_t>(name.size() + size)) + chunk + Number(Crc(chunk)));
  PeakMemory();
  const size_t before = PeakMemory();
  const absl::StatusOr<RgbImage> image = DecodeImage(bytes);
  EXPECT_LT(PeakMemory(), before + kUnpacked / 4);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->pixels, DecodeImage(File("rgb.png"))->pixels);
}

TEST(ImageDecodeTest, EveryCutOfAFileEnds) {
  for (const char* name : {"palette_beyond.png", "interlaced.png", "cmyk.jpg", "progressive.jpg"}) {
    const std::string bytes = File(name);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const absl::StatusOr<RgbImage> image = DecodeImage(bytes.substr(0, size));
      EXPECT_TRUE(image.ok() || absl::IsInvalidArgument(image.status())) << name << ", " << size;
    }
  }
}

// Scans of a progressive file cost time, not bytes.
TEST(ImageDecodeTest, ManyScansAreRefused) {
  std::string bytes = File("progressive.jpg");
  const size_t begin = bytes.find("\xff\xda"), end = bytes.find("\xff\xc4", begin);  // until the next tables
  const std::string first = bytes.substr(begin, end - begin);  // it may come again: it does not refine
  bytes.resize(bytes.size() - 2);
  EXPECT_TRUE(DecodeImage(bytes + first + "\xff\xd9").ok());
  for (int i = 0; i < 40; ++i) bytes += first;
  EXPECT_EQ(Message(bytes + "\xff\xd9"), "is no JPEG that can be read: the file has more than 24 scans");
}

class ImageReaderTest : public ::testing::Test {
 protected:
  const edgewise::testing::LoadedModel model_ = edgewise::testing::LoadModel(Folder() + "vit_classes/1");
};

TEST_F(ImageReaderTest, MemoryIsHeldBeforeItIsTaken) {
  const std::string bytes = File("photo.png");
  const absl::StatusOr<ImageHeader> header = ReadImageHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  const uint64_t needed = header->bytes + PatchRowsBytes(header->width, header->height, model_->config().image);
  MemoryLedger little(needed - 1), enough(needed);
  MemoryHold of_little(little), of_enough(enough);
  const auto read = [&](MemoryHold& hold) {
    const Ticket ticket{.memory = &hold, .apart = true};
    RequestBounds bounds(ticket, [] { return absl::OkStatus(); });
    ImageReader reader(bounds);
    absl::Status status = reader.Read(bytes, *model_).status();
    EXPECT_EQ(hold.bytes(), status.ok() ? needed : 0u);
    return status;
  };
  EXPECT_TRUE(absl::IsResourceExhausted(read(of_little)));
  EXPECT_TRUE(read(of_enough).ok());
  EXPECT_EQ(of_enough.bytes(), 0u);
}

TEST_F(ImageReaderTest, ImagesOfARequestHaveSoManyPixelsTogether) {
  ImageReader reader(NoBounds());
  // Each is within the bound. They are broken behind their headers, which is found when they are decoded.
  const std::string large = Png(16384, 1500, 8, 2);
  EXPECT_NE(reader.Read(large, *model_).status().message().find("IDAT stream too short"), std::string::npos);
  EXPECT_EQ(std::string(reader.Read(large, *model_).status().message()),
            "image has 16384 x 1500 pixels; with it the images of the request have 49152000, and at most 33554432 are "
            "served");
}

}  // namespace
}  // namespace edgewise::server
