// What a model makes of token ids: limits, truncation, pads and the CLS token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Counting(int32_t first, int32_t last) {
  std::vector<int32_t> ids;
  for (int32_t id = first; id <= last; ++id) ids.push_back(id);
  return ids;
}

class PrepareTest : public ::testing::TestWithParam<bool> {  // with a CLS token
 protected:
  PrepareTest() {
    auto config = SmallConfig();
    config["max_position_embeddings"] = 8;
    if (GetParam()) {
      config["pooling"] = {{"kind", "cls"}};
      config["cls_token_id"] = 49;
    }
    loaded_ = LoadModel(WriteModel(folder_.path(), config));
  }

  // Token ids as the model sees them, the CLS token taken off.
  std::vector<int32_t> Kept(const ModelSequence& sequence) const {
    std::vector<int32_t> ids = sequence.token_ids;
    if (GetParam()) {
      EXPECT_EQ(ids.front(), 49);
      ids.erase(ids.begin());
    }
    return ids;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

TEST_P(PrepareTest, TruncationKeepsTheEndOrTheBeginningAndCountsWhatIsLost) {
  const int32_t room = GetParam() ? 7 : 8;
  const auto head = loaded_->Prepare(Counting(1, 12), TruncateMode::kHead);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(Kept(*head), Counting(12 - room + 1, 12));
  EXPECT_EQ(head->truncated_tokens, static_cast<uint32_t>(12 - room));
  const auto tail = loaded_->Prepare(Counting(1, 12), TruncateMode::kTail);
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(Kept(*tail), Counting(1, room));
  EXPECT_EQ(tail->truncated_tokens, static_cast<uint32_t>(12 - room));
}

TEST_P(PrepareTest, FullLengthIsTakenAndTheClsTokenDropsTheLastPosition) {
  const auto full = loaded_->Prepare(Counting(1, 8), TruncateMode::kRefuse);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->length(), 8);
  EXPECT_EQ(Kept(*full), Counting(1, GetParam() ? 7 : 8));
  EXPECT_EQ(full->truncated_tokens, GetParam() ? 1u : 0u);
}

TEST_P(PrepareTest, RefusalsNameTheValueAndTheLimit) {
  const auto message = [&](const std::vector<int32_t>& ids) {
    return std::string(loaded_->Prepare(ids, TruncateMode::kRefuse).status().message());
  };
  EXPECT_THAT(message(Counting(1, 9)), HasSubstr("has 9 tokens; the model takes 8"));
  EXPECT_THAT(message({}), HasSubstr("token_ids is empty"));
  EXPECT_THAT(message({1, 50}), HasSubstr("token_ids[1] is 50; the vocabulary has 50 entries"));
  EXPECT_THAT(message({-1}), HasSubstr("token_ids[0] is -1"));
  if (!GetParam()) {
    EXPECT_THAT(message({0, 0}), HasSubstr("all of them pads (0)"));
  }
}

TEST_P(PrepareTest, PadsKeepTheirPlaces) {
  const auto sequence = loaded_->Prepare({5, 0, 6}, TruncateMode::kRefuse);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(sequence->positions, GetParam() ? (std::vector<int32_t>{0, 1, 3}) : (std::vector<int32_t>{0, 2}));
}

INSTANTIATE_TEST_SUITE_P(Cls, PrepareTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "with_cls" : "without"); });

}  // namespace
}  // namespace edgewise::testing
