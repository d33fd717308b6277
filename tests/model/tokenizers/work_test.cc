// What tokenising a text may take: time, and bytes that are reserved before they are held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/field_error.h"
#include "model/tokenizers/normalizers.h"
#include "model/tokenizers/unicode.h"
#include "tests/model/counting_bounds.h"
#include "tests/model/tokenizers/tokenizer_case.h"

namespace {

// Bytes that this thread holds by operator new, and the most since ResetPeak.
thread_local size_t held = 0, peak = 0;
thread_local bool counts = false;
constexpr size_t kHeader = 16;

}  // namespace

void* operator new(size_t size) {
  void* const block = std::malloc(size + kHeader);
  if (block == nullptr) std::abort();
  *static_cast<size_t*>(block) = counts ? size : 0;
  held += counts ? size : 0;
  peak = std::max(peak, held);
  return static_cast<char*>(block) + kHeader;
}
void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  void* const whole = static_cast<char*>(block) - kHeader;
  held -= std::min(held, *static_cast<size_t*>(whole));
  std::free(whole);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace edgewise::tests {
namespace {

using nlohmann::json;

std::string Repeated(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

const std::vector<std::string>& Units() {
  static const std::vector<std::string> units = {"a", "!", "1", "a ", "!a", "É", "東", "e\u0301", "\n", "<s>", "ﷺ"};
  return units;
}

class TextWorkTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<HfTokenizer> tokenizer_ = MakeTokenizer(TokenizerJson(GetParam()));
};

// What is reserved is at least what is allocated, but for a few buffers of pieces, and at most a few times as much.
TEST_P(TextWorkTest, BytesAreReservedBeforeTheyAreHeld) {
  constexpr size_t kPieces = 2 << 20, kRegex = 40;  // Oniguruma allocates by itself
  for (const std::string& unit : Units()) {
    for (const bool only_ids : {true, false}) {
      const std::string text = Repeated(unit, 1 << 17);
      CountingBounds bounds;
      held = peak = 0;
      counts = true;
      const auto encoding = tokenizer_->Encode(text, {.only_ids = only_ids}, bounds);
      counts = false;
      ASSERT_TRUE(encoding.ok()) << unit << ": " << encoding.status();
      EXPECT_LE(peak, bounds.reserved_peak + kPieces) << unit;
      EXPECT_LE(bounds.reserved_peak, 4 * peak + kPieces + kRegex * text.size()) << unit;
      EXPECT_EQ(bounds.reserved, 0u) << unit;
    }
  }
}

// Wherever the work ends, it ends with that status, and holds nothing any more.
TEST_P(TextWorkTest, EndsWhereItsBoundsSaySo) {
  for (const std::string& unit : Units()) {
    const std::string text = Repeated(unit, 1 << 16);
    CountingBounds whole;
    ASSERT_TRUE(tokenizer_->Encode(text, {}, whole).ok());
    EXPECT_GE(whole.asks, text.size() / kWorkPiece / 2) << unit;
    for (const uint64_t part : {2, 3, 7}) {
      CountingBounds ending;
      ending.ends_at = std::max<uint64_t>(whole.asks / part, 1);
      EXPECT_EQ(tokenizer_->Encode(text, {}, ending).status(), absl::DeadlineExceededError("late")) << unit;
      EXPECT_EQ(ending.asks, ending.ends_at) << "and asks no more";
      EXPECT_EQ(ending.reserved, 0u);
      CountingBounds narrow;
      narrow.most = whole.reserved_peak / part - 1;
      EXPECT_EQ(tokenizer_->Encode(text, {}, narrow).status(), absl::ResourceExhaustedError("no more bytes")) << unit;
      EXPECT_EQ(narrow.reserved, 0u);
    }
  }
}

TEST_P(TextWorkTest, ATextThatIsRefusedIsNotReadToItsEnd) {
  for (const std::string unit : {"a", "!", "1", "a ", "!a"}) {
    const std::string text = Repeated(unit, 1 << 18);
    CountingBounds whole, refused;
    const auto all = tokenizer_->Encode(text, {.only_ids = true}, whole);
    ASSERT_TRUE(all.ok());
    if (all->size() <= 40) continue;  // WordPiece: a long word is one unknown token
    const auto encoding = tokenizer_->Encode(text, {.max_tokens = 40, .refuse_longer = true}, refused);
    ASSERT_TRUE(encoding.ok()) << encoding.status();
    EXPECT_TRUE(encoding->too_long);
    EXPECT_EQ(encoding->size(), 0u);
    EXPECT_LT(refused.asks, whole.asks - whole.asks / 8) << unit;
  }
}

TEST_P(TextWorkTest, RefusesExactlyWhatHasMoreTokens) {
  const std::string text = "It's 12 é\u0301 東京 😀  <s> ab. [MASK] density";
  const auto whole = tokenizer_->Encode(text, "second");
  ASSERT_TRUE(whole.ok());
  for (size_t most = 1; most < whole->size() + 3; ++most) {
    const auto encoding = tokenizer_->Encode(text, "second", {.max_tokens = most, .refuse_longer = true});
    ASSERT_TRUE(encoding.ok()) << encoding.status();
    EXPECT_EQ(encoding->too_long, most < whole->size()) << most;
    if (!encoding->too_long) {
      EXPECT_EQ(encoding->ids, whole->ids);
    }
  }
}

// Cuts keep only what may stay, and count all.
TEST_P(TextWorkTest, CutsOfLongTextsAreThoseOfTheWholeOne) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? "ab, " : "x1 é";
  const auto whole = tokenizer_->Encode(text, {.add_special_tokens = false});
  ASSERT_TRUE(whole.ok());
  for (const size_t most : {1, 40, 1500}) {
    for (const bool left : {false, true}) {
      const auto cut =
          tokenizer_->Encode(text, {.add_special_tokens = false, .max_tokens = most, .truncate_left = left});
      ASSERT_TRUE(cut.ok());
      const size_t stays = std::min(most, whole->size()), begin = left ? whole->size() - stays : 0;
      EXPECT_EQ(cut->truncated, whole->size() - stays);
      EXPECT_EQ(cut->ids, std::vector<int32_t>(whole->ids.begin() + begin, whole->ids.begin() + begin + stays));
      EXPECT_EQ(cut->words, std::vector<int32_t>(whole->words.begin() + begin, whole->words.begin() + begin + stays));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TextWorkTest, ::testing::ValuesIn(TokenizerKinds()), [](const auto& kind) {
  std::string name = kind.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

// A text that is changed in pieces becomes what it becomes as a whole, and every byte comes from the same place.
TEST(PiecesTest, AreChangedAsTheWholeTextIs) {
  using tokenizers::AlignedText;
  const json normalizers[] = {{{"type", "NFC"}},
                              {{"type", "NFD"}},
                              {{"type", "NFKC"}},
                              {{"type", "NFKD"}},
                              {{"type", "Lowercase"}},
                              {{"type", "StripAccents"}},
                              {{"type", "ByteLevel"}},
                              {{"type", "BertNormalizer"},
                               {"clean_text", true},
                               {"handle_chinese_chars", true},
                               {"lowercase", true},
                               {"strip_accents", nullptr}},
                              TokenizerJson("xlm-roberta")["normalizer"],
                              {{"type", "Sequence"},
                               {"normalizers",
                                {{{"type", "Prepend"}, {"prepend", "▁"}},
                                 {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
                                 {{"type", "Lowercase"}}}}}};
  const std::string characters[] = {"a",      "B",  " ",      "\r",     "\n",      "é",        "e\u0301",
                                    "\u0323", "東", "\u1100", "\u1161", "ﷺ",       "😀",        "👩",
                                    "İ",      "\t", "\0",     "½",      "क\u094d", "か\u3099", "\u0301"};
  uint64_t random = 1;
  for (const json& file : normalizers) {
    tokenizers::Steps steps;
    const auto normalizer = tokenizers::ReadNormalizer(file, "normalizer", steps);
    ASSERT_TRUE(normalizer.ok()) << normalizer.status();
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (int i = 0; i < 40; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        text += characters[(random >> 33) % std::size(characters)];
      }
      tokenizers::Work whole(NoBounds()), pieces(NoBounds());
      pieces.piece = 1 + round % 7;
      auto expected = AlignedText::Of(text, 5, whole), found = AlignedText::Of(text, 5, pieces);
      ASSERT_TRUE((*normalizer)->Normalize(*expected, whole).ok() && (*normalizer)->Normalize(*found, pieces).ok());
      ASSERT_EQ(found->text(), expected->text()) << file.dump().substr(0, 60);
      for (uint32_t at = 0; at <= found->text().size(); ++at) {
        EXPECT_EQ(found->Origin(at, at + 1), expected->Origin(at, at + 1)) << at << " of " << text;
      }
    }
  }
}

}  // namespace
}  // namespace edgewise::tests
