// Bodies as they come: whole, in chunks, and in any parts; and the bytes of a connection that wait.
#include <gtest/gtest.h>

#include <string>

#include "server/http/body.h"
#include "server/http/inbox.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kMost = 1000;

struct ReadBody {
  std::string body;
  size_t used = 0;
  bool done = false;
  int code = 0;
};

// Gives the reader `part` bytes at once, as a connection does that keeps what was not read.
ReadBody Read(BodyReader reader, const std::string& bytes, size_t part) {
  ReadBody read;
  for (size_t at = 0; at < bytes.size() && !reader.done() && reader.refusal().code == 0; at += part) {
    read.used += reader.Read(std::string_view(bytes).substr(at, part), read.body);
  }
  read.done = reader.done();
  read.code = reader.refusal().code;
  EXPECT_EQ(read.code == 0, reader.refusal().status.ok());
  return read;
}

TEST(HttpBodyTest, ChunksAreReadInAnyPartsAndNoByteBehindThem) {
  const std::string text =
      "5\r\nhello\r\n0000A;a=b; c=\"d;e\"\t\r\n, world..x\r\n1 \t; x\r\n!\r\n000\r\nX: y\r\nZ:\r\n\r\n";
  for (size_t part = 1; part <= text.size() + 3; ++part) {
    const ReadBody read = Read(BodyReader::OfChunks(kMost), text + "GET", part);
    EXPECT_EQ(read.body, "hello, world..x!") << part;
    EXPECT_TRUE(read.done) << part;
    EXPECT_EQ(read.used, text.size()) << part;
    const ReadBody cut = Read(BodyReader::OfChunks(kMost), text.substr(0, text.size() - 1), part);
    EXPECT_FALSE(cut.done) << part;
    EXPECT_EQ(cut.code, 0) << part;
  }
  for (size_t part = 1; part <= 6; ++part) {
    const ReadBody read = Read(BodyReader::OfLength(4), "bodyGET", part);
    EXPECT_EQ(read.body, "body") << part;
    EXPECT_EQ(read.used, 4u) << part;
  }
}

TEST(HttpBodyTest, WhatAnotherPartyMayReadOtherwiseIsRefused) {
  for (const char* text : {"\r\n",
                           "x\r\n",
                           "-1\r\n",
                           "+1\r\n",
                           " 1\r\na\r\n",
                           "0x1\r\na\r\n",
                           "1\na\r\n",
                           "1\r\r\na\r\n",
                           "1 \r\na\r\n",
                           "1 2\r\na\r\n",
                           "1\r\nab\r\n",
                           "1\r\na\n0\r\n\r\n",
                           "1\r\na0\r\n\r\n",
                           "1;a\nb\r\na\r\n",
                           "1;a\rb\r\na\r\n",
                           "1;\x01\r\na\r\n",
                           "1;\x7f\r\na\r\n",
                           ";a\r\n",
                           "00000000000000001\r\na\r\n",
                           "0\r\nX\r\n\r\n",
                           "0\r\n X: y\r\n\r\n",
                           "0\r\n: y\r\n\r\n",
                           "0\r\nX: y\n\r\n",
                           "0\r\nX: \x01\r\n\r\n",
                           "0\r\n\n",
                           "0\r\n\rx"}) {
    EXPECT_EQ(Read(BodyReader::OfChunks(kMost), text, 100).code, 400) << text;
    EXPECT_EQ(Read(BodyReader::OfChunks(kMost), text, 1).code, 400) << text;
  }
  EXPECT_EQ(Read(BodyReader::OfChunks(kMost), std::string("1;\0\r\na\r\n", 9), 100).code, 400);
}

TEST(HttpBodyTest, ASizeBeyondTheLimitIsRefusedBeforeItsData) {
  for (const char* text : {"3E9\r\n", "7FFFFFFFFFFFFFFF\r\n", "FFFFFFFFFFFFFFFF\r\n", "1\r\na\r\n3E8\r\n"}) {
    EXPECT_EQ(Read(BodyReader::OfChunks(kMost), text, 100).code, 413) << text;
  }
  const ReadBody all =
      Read(BodyReader::OfChunks(kMost), "3E7\r\n" + std::string(999, 'a') + "\r\n1\r\nb\r\n0\r\n\r\n", 7);
  EXPECT_TRUE(all.done);
  EXPECT_EQ(all.body.size(), kMost);
}

TEST(HttpBodyTest, ExtensionsAndTrailersAreBoundedTogether) {
  const auto bytes = [](size_t extensions, size_t trailers) {
    std::string text;
    for (size_t i = 0; i < extensions; ++i) text += "1;234567\r\na\r\n";  // 7 bytes each
    text += "0\r\n";
    for (size_t i = 0; i < trailers; ++i) text += "X:34567\r\n";  // 7 bytes each
    return text + "\r\n";
  };
  EXPECT_TRUE(Read(BodyReader::OfChunks(1 << 20), bytes(1170, 0), 100).done);
  EXPECT_TRUE(Read(BodyReader::OfChunks(1 << 20), bytes(0, 1170), 100).done);
  EXPECT_TRUE(Read(BodyReader::OfChunks(1 << 20), bytes(585, 585), 100).done);
  EXPECT_EQ(Read(BodyReader::OfChunks(1 << 20), bytes(1171, 0), 100).code, 431);
  EXPECT_EQ(Read(BodyReader::OfChunks(1 << 20), bytes(0, 1171), 100).code, 431);
  EXPECT_EQ(Read(BodyReader::OfChunks(1 << 20), bytes(586, 585), 100).code, 431);
  EXPECT_EQ(Read(BodyReader::OfChunks(1 << 20), "1;" + std::string(9000, 'x'), 100).code, 431) << "without an end";
}

TEST(InboxTest, KeepsNoMemoryOfBytesThatWereUsed) {
  Inbox inbox;
  inbox.Append(std::string(4 << 20, 'a'));
  inbox.Use((4 << 20) - 1);
  EXPECT_EQ(inbox.view(), "a");
  EXPECT_LT(inbox.capacity(), size_t{1024});
}

TEST(InboxTest, GivesWhatWasPutInWhateverIsUsedAtOnce) {
  Inbox inbox;
  std::string expected;
  char next = 0;
  for (size_t step = 0; step < 2000; ++step) {
    for (size_t i = 0; i < step % 7; ++i) {
      inbox.Append(std::string_view(&next, 1));
      expected += next++;
    }
    const size_t used = std::min(expected.size(), step % 5);
    EXPECT_EQ(inbox.view(), expected);
    inbox.Use(used);
    expected.erase(0, used);
  }
  EXPECT_EQ(inbox.size(), expected.size());
  inbox.Use(inbox.size());
  EXPECT_TRUE(inbox.empty());
}

}  // namespace
}  // namespace edgewise::server
